"""The depth of a voxel inside a cell: thresholded affinities and their distance transform.

A voxel is *inside* if the mean of its affinities is above one half of the full scale (255 of u8), as published. This
threshold does not depend on the content of a block. The depth of a voxel is the squared Euclidean distance in voxels to
the nearest voxel that is not inside. It is an integer, so ties are exact, and the flood can use one queue per distance
instead of a heap. The transform:

1. Along x: distance to the nearest outside voxel of the row, by one pass forwards and one back.
2. Along y, then z: the smallest k^2 + f(q - k) or k^2 + f(q + k) of the column, f being the result of the previous
   axes. k grows from 0 until k^2 alone is not less than the smallest value so far:

    f          . 9 4 9 .          q: 9, then 4 + 1 = 5, and 2^2 = 4 is less than 5, so one more step; 3^2 is not
                   q

Inside cells k stays below their radius. Neighbouring columns are processed together by vector instructions.

The voxels that are not inside, the *boundary zone*, all have depth 0, so geometry alone would decide which flood gets
them. With `boundary = "affinity"` they have depths as well: the sum of the affinities to their neighbours, three before
and three after (in xy: two and two). All of these are below the depths inside, which are raised by the largest sum.

               cell A       boundary zone         cell B
    affinity   .9 .9 .9   .4 .4 .4 .4 .4 .1   .9 .9 .9
    distance   A  A  A    A  A  A  B  B  B    B  B  B      the floods meet in the middle of the zone,
    affinity   A  A  A    A  A  A  A  A  B    B  B  B      or at the membrane
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_runtime.compiled import compiled

FULL_SCALE = 255
# No sum of the affinities of a voxel to its six neighbours is larger.
LARGEST_SUM = 6 * FULL_SCALE
_TILE = 64


def inside_mask(affs: NDArray[np.uint8], in_xy: bool) -> NDArray[np.bool_]:
    """Mark the voxels whose mean affinity is above one half of the full scale.

    :param affs: (3 or more, z, y, x) u8, channels z, y, x; further channels are not used.
    :param in_xy: use the in-plane channels 1 (y) and 2 (x) only.
    :raises BadData: when `affs` has another type or fewer than three channels.
    """
    if affs.ndim != 4 or affs.shape[0] < 3 or affs.dtype != np.uint8:
        raise BadData(
            "these are not affinities",
            wanted="u8 (3, z, y, x)",
            found=f"{affs.dtype} {affs.shape}",
        )
    channels = affs[1:3] if in_xy else affs[:3]
    total = channels.sum(axis=0, dtype=np.uint16)
    inside: NDArray[np.bool_] = 2 * total > FULL_SCALE * channels.shape[0]
    return inside


def squared_distance(inside: NDArray[np.bool_], in_xy: bool) -> NDArray[np.int32]:
    """Squared distance in voxels to the nearest voxel that is not inside; 0 there.

    With `in_xy` every section (z) is processed separately. Without any boundary no distance is defined: every voxel
    gets 1, so the whole volume (section) is one plateau. The faces of the volume are not a boundary.

    :param inside: (z, y, x) bool.
    """
    if not in_xy:
        return _distance_of(inside)
    sections = [_distance_of(section[np.newaxis])[0] for section in inside]
    return np.stack(sections) if sections else np.zeros(inside.shape, np.int32)


def _distance_of(inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    if inside.all():
        return np.ones(inside.shape, np.int32)
    return squared_distance_transform(inside)


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


def raise_boundary_zone(distance_squared: NDArray[np.int32], affs: NDArray[np.uint8], in_xy: bool) -> NDArray[np.int32]:
    """Depths for a flood that follows the affinities in the boundary zone; the order of depths inside stays.

    The affinity after a voxel is that of the next voxel to the one before it. After the last voxel of an axis there is
    none: the one before it counts twice.

    :param distance_squared: (z, y, x), 0 in the boundary zone.
    :param affs: (3 or more, z, y, x) u8, channels z, y, x.
    :param in_xy: use the in-plane channels 1 (y) and 2 (x) only.
    :returns: (z, y, x) distance_squared + LARGEST_SUM inside, elsewhere the sum of the affinities, 0 to LARGEST_SUM.
    """
    total = np.zeros(distance_squared.shape, np.uint16)
    for axis in (1, 2) if in_xy else (0, 1, 2):
        last = total.shape[axis] - 1
        total += affs[axis]
        total += affs[axis].take(np.minimum(np.arange(1, last + 2), last), axis)
    depth: NDArray[np.int32] = np.where(distance_squared > 0, distance_squared + LARGEST_SUM, total)
    return depth


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
    # lanes beyond the last column hold 0 or values of an earlier tile, and are not read back
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
        # beyond its ends the column repeats its last voxel, which is nearer and was compared already
        above, below, square = costs[max(q - k, 0)], costs[min(q + k, length - 1)], np.int32(k * k)
        highest = np.int32(0)
        for column in range(_TILE):
            lowest[column] = min(lowest[column], np.int32(min(above[column], below[column]) + square))
            highest = max(highest, lowest[column])
        k += 1
