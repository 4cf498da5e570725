"""Ids of fragments, unique in the whole volume; two modes.

blocks (as published)   id = row-major block number * voxels per block + local number 1, 2, ...
                        A block has at most as many fragments as voxels, so two blocks never share an id. The block of
                        a fragment follows from its id: (id - 1) // voxels per block.

seamless                id = 1 + position of the seed in the volume
                        The position is the row-major index of the first voxel of the seed in the target grid (z
                        slowest, x fastest). Two blocks that both contain a seed give its fragment the same id, so it
                        crosses the face between them without stitching. Two seeds never share a voxel, so ids are
                        unique. Voxels have the same order in a box as in the volume, so numbers by first voxel in a box
                        have the order of ids.
"""

from __future__ import annotations

import math

import cc3d
import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_runtime.compiled import compiled

ID_LIMIT = 2**63
Int64s = NDArray[np.int64]


def number_components(fragments: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], int]:
    """Give every face-connected component of a fragment its own local number.

    Cropping splits some fragments into components that are connected only outside the block.

    :param fragments: (z, y, x), 0 = none.
    :returns: (z, y, x) u64 numbers 1..n in the order of their first voxel (z, y, x), and n.
    """
    if not fragments.any():
        return np.zeros(fragments.shape, np.uint64), 0
    pieces, count = cc3d.connected_components(
        np.ascontiguousarray(fragments), connectivity=6, return_N=True, out_dtype=np.uint32
    )
    flat = pieces.astype(np.uint32, copy=False).ravel()
    return _number_by_first_voxel(flat, int(count)).reshape(fragments.shape), int(count)


@compiled
def _number_by_first_voxel(pieces: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    number = np.zeros(count + 1, np.uint64)
    out = np.zeros(pieces.size, np.uint64)
    known = np.uint64(0)
    for voxel in range(pieces.size):
        piece = pieces[voxel]
        if piece == 0:
            continue
        if number[piece] == 0:
            known += np.uint64(1)
            number[piece] = known
        out[voxel] = number[piece]
    return out


def global_ids(numbers: NDArray[np.uint64], block_number: int, voxels_per_block: int) -> NDArray[np.uint64]:
    """Convert local numbers (0 = none) to ids that are unique in the volume; 0 stays 0."""
    start = np.uint64(block_number * voxels_per_block)
    return np.where(numbers > 0, numbers + start, np.uint64(0))


def check_id_range(block_count: int, voxels_per_block: int) -> None:
    """Raise ConfigError if the largest possible fragment id does not fit a signed 64-bit integer.

    :raises ConfigError: names the largest id and the limit. Stores use signed integers for ids.
    """
    largest = block_count * voxels_per_block
    if largest >= ID_LIMIT:
        raise ConfigError(
            "fragment ids do not fit into 64 bits",
            where="watershed.block_shape",
            wanted=f"largest id below 2^63 = {ID_LIMIT}",
            found=f"{block_count} blocks of {voxels_per_block} voxels: largest id {largest}",
            fix="choose a block_shape that wastes fewer voxels outside the volume",
        )


def number_seeds(seeds: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], Int64s]:
    """Renumber the seeds in the order of their first voxels.

    :param seeds: (z, y, x) numbers of seeds in any order, 0 = none.
    :returns: the same with numbers 1..n, and (n,) row-major index of the first voxel of each.
    """
    numbers, first = _number_seeds_by_first_voxel(np.ascontiguousarray(seeds).ravel(), int(seeds.max(initial=0)))
    return numbers.reshape(seeds.shape), first


@compiled
def _number_seeds_by_first_voxel(seeds: NDArray[np.uint32], highest: int) -> tuple[NDArray[np.uint32], Int64s]:
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
    """Raise ConfigError if the seed id of the last voxel does not fit a signed 64-bit integer.

    :raises ConfigError: also for voxels outside the target grid, whose ids would be those of other voxels.
    """
    largest = math.prod(grid_shape_vox)
    if largest >= ID_LIMIT:
        raise ConfigError(
            "fragment ids do not fit into 64 bits",
            where="watershed.id_mode",
            wanted=f"at most 2^63 - 1 = {ID_LIMIT - 1} voxels in the target",
            found=f"{grid_shape_vox}: {largest} voxels",
            fix='watershed.id_mode = "blocks", or a smaller target',
        )
    if not Box((0, 0, 0), grid_shape_vox).contains(total):
        raise ConfigError(
            "seeds outside the target have no place in it",
            where="watershed.id_mode",
            wanted=f"affinities inside {Box((0, 0, 0), grid_shape_vox)}",
            found=str(total),
            fix='watershed.id_mode = "blocks"',
        )
