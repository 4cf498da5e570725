"""The watershed whose ties are decided by the names of seeds alone: blocks that see the same basin agree on it.

The published flood (flood.py) is first come first served: who is first depends on where the block begins. Here a voxel
belongs to the seed whose flood reaches it first, with time (level, step, seed):

    level   smallest depth on the way from the seed: deep levels come first
    step    voxels walked since that level began
    seed    number of the seed, which follows the place of its first voxel in the volume (seed_names.py)

    depth   9 7 5 3 3 4 3 3 5 8      level 3: both floods enter in step 0, walk one voxel a step, also up into the
    flood   A A A A A b B B B B      unseeded hill in the middle; a voxel that both reach in the same step gets A

Every flood that reaches a voxel in the same step is looked at, and the one with the smallest seed stays; so the order
in which voxels lie in memory or wait in a queue takes no part in it: flip the axes, and the result is the flipped one.

Voxels wait in two arrays: those that deeper levels reached, by depth; and those of the current level, step after step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

# Label, mark and depth of a voxel share a 64-bit word. MARK: reached, but a smaller seed may still come in this step.
MARK = 1 << 32
LABEL = 33


def flood_by_seed(distance_squared: NDArray[np.int32], seeds: NDArray[np.uint32], in_xy: bool) -> NDArray[np.uint32]:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^30, 0 = no seed; the smaller number wins ties.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    deepest = int(distance_squared.max())
    room = np.cumsum(np.bincount(distance_squared.ravel(), minlength=deepest + 1))
    first = np.concatenate([[0], room[:-1]])
    labels: NDArray[np.uint32] = _flood(distance_squared, seeds, first, in_xy)
    return labels


@compiled
def _flood(
    distance: NDArray[np.int32], seeds: NDArray[np.uint32], first: NDArray[np.int64], in_xy: bool
) -> NDArray[np.uint32]:
    nz, ny, nx = distance.shape
    row, plane = nx + 2, (nx + 2) * (ny + 2)
    # around the volume lies a rim of voxels with label 0, which no seed can take: no face to ask for
    word = np.full(plane * (nz + 2), np.int64(-1), np.int64)
    waiting = np.empty(distance.size, np.int32)
    tail = first.copy()
    for z in range(nz):
        for y in range(ny):
            start = (z + 1) * plane + (y + 1) * row + 1
            for x in range(nx):
                depth = np.int64(distance[z, y, x])
                word[start + x] = (np.int64(seeds[z, y, x]) << LABEL) | depth
                if seeds[z, y, x] != 0:
                    waiting[tail[depth]] = start + x
                    tail[depth] += 1
    _sink(word, waiting, (first, tail), (0 if in_xy else plane, row))
    labels = np.empty(distance.shape, np.uint32)
    for z in range(nz):
        for y in range(ny):
            start = (z + 1) * plane + (y + 1) * row + 1
            for x in range(nx):
                labels[z, y, x] = word[start + x] >> LABEL
    return labels


@compiled
def _sink(
    word: NDArray[np.int64],
    waiting: NDArray[np.int32],
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]],
    steps: tuple[int, int],
) -> None:
    """All levels, from deep to shallow; within a level step after step."""
    first, tail = bounds
    front = np.empty(waiting.size, np.int32)
    end = 0
    for level in range(first.size - 1, -1, -1):
        begin = end
        for place in range(first[level], tail[level]):
            front[end] = waiting[place]
            end += 1
        while begin < end:
            stop = end
            for place in range(begin, stop):
                word[front[place]] &= ~np.int64(MARK)
            end = _step(word, (front, begin, stop), (waiting, tail), level, steps)
            begin = stop


@compiled
def _step(
    word: NDArray[np.int64],
    queue: tuple[NDArray[np.int32], int, int],
    lower: tuple[NDArray[np.int32], NDArray[np.int64]],
    level: int,
    steps: tuple[int, int],
) -> int:
    """Walk one voxel from the voxels front[begin:stop]; those reached now stand behind them, up to the returned end."""
    front, begin, stop = queue
    waiting, tail = lower
    # from a voxel to the next section and row; 0: the neighbour is the voxel itself, labelled already
    dz, dy = steps
    end = stop
    for place in range(begin, stop):
        voxel = np.int64(front[place])
        label = word[voxel] >> LABEL
        for neighbour in (voxel - dz, voxel - dy, voxel - 1, voxel + 1, voxel + dy, voxel + dz):
            reached = word[neighbour]
            if reached < 0:
                continue
            if reached < MARK:
                word[neighbour] = (label << LABEL) | MARK | reached
                if reached >= level:
                    front[end] = neighbour
                    end += 1
                else:
                    waiting[tail[reached]] = neighbour
                    tail[reached] += 1
            elif reached & MARK and label < reached >> LABEL:
                word[neighbour] = (label << LABEL) | (reached & ((np.int64(1) << LABEL) - 1))
    return end
