"""A watershed whose ties are decided by the ids of seeds, so that blocks that contain the same basin agree on it.

In the published flood (flood.py) the first to reach a voxel wins, which depends on where the block begins. Here a voxel
belongs to the seed whose flood reaches it first, with time (level, step, way, seed):

    level   smallest depth on the way from the seed; deep levels come first
    step    number of voxels of exactly that depth since that level began; a hill is climbed in no time, and as a whole
    way     the time of the previous voxel, and so on back to the seed: the steeper side first
    seed    number of the seed, in the order of their first voxels in the volume (ids.py)

    depth   7 5 3 3 8 6 3 3 5 7     level 3: both floods have the same way and advance one voxel per step. They reach
    flood   A A A A A A B B B B     the unseeded hill in the middle in the same step: A, the smaller, gets all of it

A first-in-first-out queue keeps the order of ways. Voxels with the same level, step and way share a turn. If several
floods reach a voxel or a hill in the same turn, the smallest seed wins. So the order of voxels in memory does not
matter: with flipped axes the result is flipped.

A voxel waits in the queue of its depth, behind those that were reached before it; the queue of the current level grows
while it is emptied. Once a voxel is reached, its word holds the turn instead of the depth, and it is marked until its
own turn comes. During the turn in which it was reached, a smaller seed may still win it.

1. Take the next voxel of the level. If it was reached in another turn than the one before, a new turn begins.
2. Reach its neighbours that are not deeper than the level.
3. A deeper neighbour is the foot of a hill: record this voxel as a climber.
4. At the end of the turn the climbers flood their hills completely, the one with the smallest seed first. All
   neighbours of a hill are reached in the same turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled
from lsdflow_watershed.flood import LABEL, MARK, ONE, UInt32s, UInt64s, labels_of, pack_voxels

Moves = tuple[np.uint64, np.uint64, np.uint64]
TURN = MARK - ONE
# A shift by so many bits removes the label of a word and keeps the mark and the turn.
WITHOUT_LABEL = np.uint64(31)


def flood_by_seed(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> UInt32s:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^30, 0 = no seed; the smaller number wins ties.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    words = pack_voxels(distance_squared, seeds, in_xy)
    _sink(words.word, words.waiting, (words.first, words.tail), words.moves)
    return labels_of(words, seeds.shape)


@compiled
def _sink(word: UInt64s, waiting: UInt32s, bounds: tuple[UInt64s, UInt64s], moves: Moves) -> None:
    """Flood all levels, from deep to shallow. One function for all steps, because calls per voxel double the time."""
    first, tail = bounds
    dz, dy, dx = moves
    # The voxels of a hill, from the beginning of this array; the climbers of a turn, from its end.
    hill = np.empty(waiting.size, np.uint32)
    turn = np.uint64(0)
    for depth in range(first.size - 1, -1, -1):
        level = np.uint64(depth)
        place, climbing, reached_from = first[level], 0, MARK
        while True:
            waits = place < tail[level]
            voxel = np.uint64(waiting[place]) if waits else np.uint64(0)
            own = word[voxel]
            if climbing and not (waits and own & TURN == reached_from):
                _take_hills(word, waiting, tail, hill, climbing, level, moves)
                climbing = 0
                continue
            if not waits:
                break
            if own & TURN != reached_from:
                reached_from = own & TURN
                turn += ONE
            place += ONE
            own = (own >> LABEL << LABEL) | turn
            word[voxel] = own
            mark = own | MARK
            climbs = False
            for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
                reached = word[neighbour]
                if reached <= level:
                    word[neighbour] = mark
                    waiting[tail[reached]] = neighbour
                    tail[reached] += ONE
                elif reached < MARK:
                    climbs = True
                elif (reached ^ mark) << WITHOUT_LABEL == 0 and mark < reached:
                    # reached in this same turn: the smaller seed wins
                    word[neighbour] = mark
            if climbs:
                climbing += 1
                hill[hill.size - climbing] = voxel


@compiled
def _take_hills(
    word: UInt64s, waiting: UInt32s, tail: UInt64s, hill: UInt32s, climbing: int, level: np.uint64, moves: Moves
) -> None:
    """Let each climber flood the free voxels that are deeper than the level, and reach the neighbours of the hill."""
    dz, dy, dx = moves
    climbers = hill[hill.size - climbing :]
    for climber in climbers[np.argsort(word[climbers])]:
        voxel = np.uint64(climber)
        own = word[voxel]
        mark = own | MARK
        place = taken = 0
        while True:
            for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
                reached = word[neighbour]
                if reached <= level:
                    word[neighbour] = mark
                    waiting[tail[reached]] = neighbour
                    tail[reached] += ONE
                elif reached < MARK:
                    word[neighbour] = own
                    hill[taken] = neighbour
                    taken += 1
                elif (reached ^ mark) << WITHOUT_LABEL == 0 and mark < reached:
                    word[neighbour] = mark
            if place == taken:
                break
            voxel = np.uint64(hill[place])
            place += 1
