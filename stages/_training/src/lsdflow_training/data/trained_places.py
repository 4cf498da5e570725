"""Places where a patch has enough trained voxels: all places of a volume, from the cumulative sums of its mask.

1. integral image: each voxel holds the number of trained voxels up to it, along z, y and x
2. the number of trained voxels in a patch is a signed sum of eight corners of the integral image

        -  .........  +        one plane of the patch: + far corner, - two others, + near corner
           .       .
        +  .........  -
"""

from __future__ import annotations

import itertools
from typing import cast

import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Vox3
from lsdflow_training.augmentation.description import Dice


def integral_image(trained: npt.NDArray[np.bool_]) -> npt.NDArray[np.integer]:
    """Cumulative sums along all axes: each voxel holds the number of trained voxels up to it."""
    integral: npt.NDArray[np.integer] = trained.astype(np.uint32 if trained.size < 2**32 else np.uint64)
    for axis in range(integral.ndim):
        np.cumsum(integral, axis=axis, out=integral)
    return integral


def random_place(
    integral: npt.NDArray[np.integer], patch_vox: Vox3, first: Vox3, end: Vox3, wanted: float, dice: Dice
) -> Vox3 | None:
    """A random begin in [first, end) of a patch with at least `wanted` trained voxels, all equally likely; or None.

    integral: see `integral_image`; patches may reach beyond it.
    """
    planes = [places_of_plane(integral, patch_vox, z, first, end, wanted) for z in range(first[0], end[0])]
    counts = np.cumsum([int(np.count_nonzero(plane)) for plane in planes])
    if len(counts) == 0 or counts[-1] == 0:
        return None
    number = dice.plain.randrange(int(counts[-1]))
    index = int(np.searchsorted(counts, number, side="right"))
    within = number - (int(counts[index - 1]) if index else 0)
    y, x = np.argwhere(planes[index])[within]
    return first[0] + index, first[1] + int(y), first[2] + int(x)


def places_of_plane(
    integral: npt.NDArray[np.integer], patch_vox: Vox3, z: int, first: Vox3, end: Vox3, wanted: float
) -> npt.NDArray[np.bool_]:
    """Which begins (z, y, x) have at least `wanted` in the patch, for y and x from `first` to `end`; bool (y, x)."""
    total = np.zeros((end[1] - first[1], end[2] - first[2]), np.int64)
    for corner in itertools.product((0, 1), repeat=3):
        sign = 1 if (3 - sum(corner)) % 2 == 0 else -1
        at = z + corner[0] * patch_vox[0] - 1
        if at < 0:
            continue
        plane = integral[min(at, integral.shape[0] - 1)]
        rows, columns = (np.arange(first[a], end[a]) + corner[a] * patch_vox[a] - 1 for a in (1, 2))
        clipped = np.ix_(np.clip(rows, 0, plane.shape[0] - 1), np.clip(columns, 0, plane.shape[1] - 1))
        inside = (rows >= 0)[:, None] & (columns >= 0)[None, :]
        values = plane[clipped].astype(np.int64)
        total += sign * np.where(inside, values, 0)
    return total >= wanted


def box_sum(integral: npt.NDArray[np.integer], begin: list[int], end: list[int]) -> int:
    """Sum over a box [begin, end) of the array whose cumulative sums are `integral`; voxels outside count as 0."""
    lower = [min(max(b, 0), n) for b, n in zip(begin, integral.shape, strict=True)]
    upper = [min(max(e, 0), n) for e, n in zip(end, integral.shape, strict=True)]
    total = 0
    for corner in itertools.product((0, 1), repeat=integral.ndim):
        index = [u if bit else low for bit, u, low in zip(corner, upper, lower, strict=True)]
        if min(index) > 0:
            value = int(integral[tuple(i - 1 for i in index)])
            total += value if (integral.ndim - sum(corner)) % 2 == 0 else -value
    return total


def has_place(trained: npt.NDArray[np.bool_], patch_vox: Vox3, wanted: float) -> bool:
    """True if some patch contains at least `wanted` of the trained voxels (z, y, x).

    Examines only patches inside the volume, and around it along axes where the patch is longer: moving a patch inwards
    never loses a trained voxel.
    """
    spans = [sorted((0, length - edge)) for length, edge in zip(trained.shape, patch_vox, strict=True)]
    first, end = cast(Vox3, tuple(low for low, _ in spans)), cast(Vox3, tuple(high + 1 for _, high in spans))
    integral = integral_image(trained)
    planes = range(first[0], end[0])
    return any(places_of_plane(integral, patch_vox, z, first, end, wanted).any() for z in planes)
