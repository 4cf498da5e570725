"""Names of fragments that do not depend on blocks: id = 1 + place of the seed in the volume (mode `seamless`).

The place of a seed is the row-major index of its first voxel in the target grid (z slowest, x fastest; of a plateau the
smallest). Two blocks that both see a seed give it the same name, so its fragment crosses the face between them without
stitching; two seeds never share a voxel, so names are unique. A smaller box orders its voxels as the volume does, so
numbering seeds by their first voxel in a box ranks them as their names do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_runtime.compiled import compiled
from lsdflow_watershed.ids import ID_LIMIT

Int64s = NDArray[np.int64]


def number_seeds(seeds: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], Int64s]:
    """Number the seeds anew, in the order of their first voxels.

    :param seeds: (z, y, x) numbers of seeds in any order, 0 = none.
    :returns: the same with numbers 1..n, and (n,) row-major index of the first voxel of each.
    """
    numbers, first = _number_by_first_voxel(np.ascontiguousarray(seeds).ravel(), int(seeds.max(initial=0)))
    return numbers.reshape(seeds.shape), first


@compiled
def _number_by_first_voxel(seeds: NDArray[np.uint32], highest: int) -> tuple[NDArray[np.uint32], Int64s]:
    number = np.zeros(highest + 1, np.uint32)
    numbers = np.zeros(seeds.size, np.uint32)
    first = np.zeros(highest, np.int64)
    known = 0
    for voxel in range(seeds.size):
        seed = seeds[voxel]
        if seed == 0:
            continue
        if number[seed] == 0:
            first[known] = voxel
            known += 1
            number[seed] = known
        numbers[voxel] = number[seed]
    return numbers, first[:known]


def seed_ids(first: Int64s, read: Box, grid_shape_vox: Vox3) -> NDArray[np.uint64]:
    """Ids of seeds, as a table by number: (n + 1,), 0 for number 0.

    :param first: (n,) row-major index of the first voxel of each seed in the box `read` of the target grid.
    """
    voxels = np.unravel_index(first, read.shape_vox)
    _, ny, nx = grid_shape_vox
    z, y, x = (axis.astype(np.uint64) + np.uint64(begin) for axis, begin in zip(voxels, read.begin_vox, strict=True))
    ids = (z * np.uint64(ny) + y) * np.uint64(nx) + x + np.uint64(1)
    return np.concatenate([np.zeros(1, np.uint64), ids])


def check_voxel_range(total: Box, grid_shape_vox: Vox3) -> None:
    """Refuse a volume whose last voxel, named as a seed, does not fit a signed 64-bit integer.

    :raises ConfigError: also for voxels outside the target grid: their places are those of others.
    """
    largest = math.prod(grid_shape_vox)
    if largest >= ID_LIMIT:
        raise ConfigError(
            "fragment ids do not fit into 64 bits",
            wanted=f"at most 2^63 - 1 = {ID_LIMIT - 1} voxels in the target",
            found=f"{grid_shape_vox}: {largest} voxels",
            hint='watershed.id_mode = "blocks", or a smaller target',
        )
    if not Box((0, 0, 0), grid_shape_vox).contains(total):
        raise ConfigError(
            "seeds outside the target have no place in it",
            wanted=f"affinities inside {Box((0, 0, 0), grid_shape_vox)}",
            found=str(total),
            hint='watershed.id_mode = "blocks"',
        )
