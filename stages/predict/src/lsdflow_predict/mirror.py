"""Reading beyond the edge of a volume: what a network sees where there is no data.

    volume        0 1 2 3
    mirror  3 2 1 0 1 2 3 2 1 0 1 2 3 ...    (the edge voxel is not repeated; as often as needed)
    zero    0 0 0 0 1 2 3 0 0 0 ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Box, Vox3

Outside = Literal["mirror", "zero"]
ReadInside = Callable[[Box], npt.NDArray[np.uint8]]


def mirror_indices(begin: int, end: int, size: int) -> npt.NDArray[np.int64]:
    """For each position begin <= i < end, the index 0 <= j < size it mirrors to; size >= 1."""
    period = max(1, 2 * (size - 1))
    folded = np.arange(begin, end, dtype=np.int64) % period
    return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(folded)


def read_around(read: ReadInside, shape_vox: Vox3, box: Box, outside: Outside) -> npt.NDArray[np.uint8]:
    """The voxels of `box`, which may reach outside a volume of `shape_vox` (its first voxel is 0, 0, 0).

    read: gives the array of a box that lies inside; only what is needed is read, once.
    """
    volume = Box((0, 0, 0), shape_vox)
    if volume.contains(box):
        return read(box)
    if outside == "zero":
        return _read_zero_around(read, volume, box)
    bounds = zip(box.begin_vox, box.end_vox, shape_vox, strict=True)
    indices = [mirror_indices(b, e, size) for b, e, size in bounds]
    begin = tuple(int(i.min()) for i in indices)
    end = tuple(int(i.max()) + 1 for i in indices)
    needed = Box.from_bounds((begin[0], begin[1], begin[2]), (end[0], end[1], end[2]))
    z, y, x = (i - b for i, b in zip(indices, needed.begin_vox, strict=True))
    return np.ascontiguousarray(read(needed)[np.ix_(z, y, x)])


def _read_zero_around(read: ReadInside, volume: Box, box: Box) -> npt.NDArray[np.uint8]:
    result = np.zeros(box.shape_vox, np.uint8)
    inside = volume.intersect(box)
    if not inside.is_empty:
        result[inside.slices(box.begin_vox)] = read(inside)
    return result
