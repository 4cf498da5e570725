"""Squared Euclidean distance to the nearest voxel outside, exact in whole numbers.

1. Along x: distance to the nearest outside voxel of the row, by one run forwards and one back.
2. Along y, then z: the smallest k^2 + f(q - k) or k^2 + f(q + k) of the column, f being what the axes before gave. k
   grows from 0 until k^2 alone is no less than what was found so far:

    f          . 9 4 9 .          q: 9, then 4 + 1 = 5, and 2^2 = 4 is less than 5, so look once more; 3^2 is not
                   q

Inside cells k stays below their radius. Columns that lie side by side are done together, many by one instruction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

_TILE = 64


def squared_distance_transform(inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Squared distance of every voxel to the nearest one that is not inside; 0 there.

    The faces of the volume are no boundary.

    :param inside: (z, y, x), False somewhere; the edges add up to less than 2^15 voxels.
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
    """Replace f by the smallest k^2 + f(q -+ k) in every column of (n, columns)."""
    length, columns = squared.shape
    # lanes beyond the last column hold 0, or what a tile before left: they are not read back
    costs, lowest = np.zeros((length, _TILE), np.int32), np.zeros(_TILE, np.int32)
    for first in range(0, columns, _TILE):
        width = min(_TILE, columns - first)
        for q in range(length):
            costs[q, :width] = squared[q, first : first + width]
        for q in range(length):
            _lowest_around(costs, q, lowest)
            squared[q, first : first + width] = lowest[:width]


@compiled
def _lowest_around(costs: NDArray[np.int32], q: int, lowest: NDArray[np.int32]) -> None:
    length = costs.shape[0]
    highest = np.int32(0)
    for column in range(_TILE):
        lowest[column] = costs[q, column]
        highest = max(highest, lowest[column])
    k = 1
    while k < length and k * k < highest:
        # beyond its ends the column goes on with the last voxel, which is nearer and was looked at already
        above, below, square = costs[max(q - k, 0)], costs[min(q + k, length - 1)], np.int32(k * k)
        highest = np.int32(0)
        for column in range(_TILE):
            lowest[column] = min(lowest[column], np.int32(min(above[column], below[column]) + square))
            highest = max(highest, lowest[column])
        k += 1
