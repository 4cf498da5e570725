"""Squared Euclidean distance to the nearest voxel outside, exact in whole numbers.

1. Along x: distance to the nearest outside voxel of the row, by one run forwards and one back.
2. Along y, then z: the smallest (q - p)^2 + f(p) over all p of the column, f being what the axes before gave. Each p is
   a parabola; the lowest of them at every q are found in one run, and read off in one run back.

       \\   \\   /      /            a parabola that is nowhere the lowest is dropped as soon as that is known;
        \\   \\ /  \\   /              the others keep the first q at which they are the lowest
         '---+-----'+---> q

Source: Meijster, Roerdink, Hesselink (2000), A general algorithm for computing distance transforms in linear time.
Columns are done in tiles, so that neighbours along x come from memory together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

_TILE = 16


def squared_distance_transform(inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Squared distance of every voxel to the nearest one that is not inside; 0 there.

    The faces of the volume are no boundary.

    :param inside: (z, y, x), False somewhere; the edges add up to less than 2^15.5 voxels.
    """
    squared = np.empty(inside.shape, np.int32)
    far = sum(inside.shape)
    _along_rows(np.ascontiguousarray(inside).reshape(-1, inside.shape[-1]), far, squared.reshape(-1, inside.shape[-1]))
    for section in squared:
        _along_columns(section)
    _along_columns(squared.reshape(inside.shape[0], -1))
    return squared


@compiled
def _along_rows(inside: NDArray[np.bool_], far: int, squared: NDArray[np.int32]) -> None:
    length = inside.shape[1]
    zero, one, limit = np.int32(0), np.int32(1), np.int32(far)
    for row in range(inside.shape[0]):
        distance = limit
        for x in range(length):
            distance = min(distance + one, limit) if inside[row, x] else zero
            squared[row, x] = distance
        distance = limit
        for x in range(length - 1, -1, -1):
            distance = min(distance + one, limit) if inside[row, x] else zero
            nearest = min(distance, squared[row, x])
            squared[row, x] = nearest * nearest


@compiled
def _along_columns(squared: NDArray[np.int32]) -> None:
    """Replace f by the lowest parabola in every column of (n, columns)."""
    length, columns = squared.shape
    costs = np.empty((_TILE, length), np.int32)
    lowest, begins = np.empty(length, np.int32), np.empty(length, np.int32)
    for first in range(0, columns, _TILE):
        width = min(_TILE, columns - first)
        for q in range(length):
            for column in range(width):
                costs[column, q] = squared[q, first + column]
        for column in range(width):
            count = _lower_envelope(costs[column], lowest, begins)
            for q in range(length - 1, -1, -1):
                p = lowest[count]
                squared[q, first + column] = (q - p) * (q - p) + costs[column, p]
                if q == begins[count]:
                    count -= 1


@compiled
def _lower_envelope(costs: NDArray[np.int32], lowest: NDArray[np.int32], begins: NDArray[np.int32]) -> int:
    """Which parabolas are lowest, and from which q on; gives the number of the last."""
    last, length = 0, np.int32(costs.size)
    lowest[0] = begins[0] = 0
    for q in range(np.int32(1), length):
        while last >= 0:
            p, at = lowest[last], begins[last]
            if (at - p) * (at - p) + costs[p] <= (at - q) * (at - q) + costs[q]:
                break
            last -= 1
        if last < 0:
            last = 0
            lowest[0], begins[0] = q, 0
        else:
            p = lowest[last]
            begin = 1 + (q * q - p * p + costs[q] - costs[p]) // (2 * (q - p))
            if begin < length:
                last += 1
                lowest[last], begins[last] = q, begin
    return last
