"""The watershed whose ties are decided by the names of seeds alone: blocks that see the same basin agree on it.

The published flood (flood.py) is first come first served: who is first depends on where the block begins. Here a voxel
belongs to the seed whose flood reaches it first, with time (level, step, way, seed):

    level   smallest depth on the way from the seed: deep levels come first
    step    voxels of just that depth walked since that level began; a hill is climbed in no time, and as a whole
    way     the time of the voxel before, and so on back to the seed: over the steeper side first
    seed    number of the seed, which follows the place of its first voxel in the volume (seed_names.py)

    depth   7 5 3 3 8 6 3 3 5 7     level 3: both floods come the same way and walk one voxel a step; they reach the
    flood   A A A A A A B B B B     unseeded hill in the middle in the same step: A, the smaller, gets all of it

A queue that is first in first out keeps the order of ways by itself. Voxels with one level, step and way share a turn;
of all floods that reach a voxel or a hill from one turn the smallest seed wins. So the order in which voxels lie in
memory takes no part in it: flip the axes, and the result is the flipped one.

Voxels wait in two arrays: those that deeper levels reached, by depth (flood_words); and those of the current level,
step by step. A word is marked while its voxel is reached, but a smaller seed may still come in this step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled
from lsdflow_watershed.flood_words import LABEL, MARK, ONE, UInt32s, UInt64s, flood_words, labels_of

Queue = tuple[UInt32s, np.uint64, np.uint64]
Moves = tuple[np.uint64, np.uint64, np.uint64]


def flood_by_seed(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> UInt32s:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^30, 0 = no seed; the smaller number wins ties.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    words = flood_words(distance_squared, seeds, in_xy)
    _sink(words.word, words.waiting, (words.first, words.tail), words.moves)
    return labels_of(words, seeds.shape)


@compiled
def _sink(word: UInt64s, waiting: UInt32s, bounds: tuple[UInt64s, UInt64s], moves: Moves) -> None:
    """All levels, from deep to shallow; within a level step after step. Turns are counted through all of them."""
    first, tail = bounds
    front = np.empty(waiting.size, np.uint32)
    # of a voxel that waits: the turn in which it was reached; then its own
    turn = np.zeros(word.size, np.int32)
    end = np.uint64(0)
    last_turn = 0
    for depth in range(first.size - 1, -1, -1):
        level = np.uint64(depth)
        begin = end
        for place in range(first[level], tail[level]):
            front[end] = waiting[place]
            end += ONE
        while begin < end:
            last_turn = _take_turns(word, turn, (front, begin, end), last_turn)
            stop = _climb(word, turn, (front, begin, end), level, moves)
            begin, end = stop, _walk(word, turn, (front, begin, end, stop), (waiting, tail), level, moves)


@compiled
def _take_turns(word: UInt64s, turn: NDArray[np.int32], queue: Queue, last_turn: int) -> int:
    """Settle the labels of front[begin:end] and number their turns: voxels reached from one turn share one."""
    front, begin, end = queue
    reached_from = -1
    for place in range(begin, end):
        voxel = front[place]
        word[voxel] &= ~MARK
        if turn[voxel] != reached_from:
            reached_from = turn[voxel]
            last_turn += 1
        turn[voxel] = last_turn
    return last_turn


@compiled
def _climb(word: UInt64s, turn: NDArray[np.int32], queue: Queue, level: np.uint64, moves: Moves) -> np.uint64:
    """Take the hills beside the voxels front[begin:end], in the order (turn, seed); their voxels stand behind them."""
    front, begin, end = queue
    dz, dy, dx = moves
    climbers = front[:0].copy()
    known = 0
    for place in range(begin, end):
        voxel = np.uint64(front[place])
        for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
            if level < word[neighbour] < MARK:
                if known == climbers.size:
                    climbers = np.concatenate((climbers, np.empty(known + 64, np.uint32)))
                climbers[known] = voxel
                known += 1
                break
    climbers = climbers[:known]
    order = np.argsort(np.array([(np.int64(turn[v]) << 30) | np.int64(word[v] >> LABEL) for v in climbers], np.int64))
    for climber in order:
        end = _take_hill(word, turn, front, end, (np.uint64(climbers[climber]), level), moves)
    return end


@compiled
def _take_hill(
    word: UInt64s,
    turn: NDArray[np.int32],
    front: UInt32s,
    end: np.uint64,
    climber: tuple[np.uint64, np.uint64],
    moves: Moves,
) -> np.uint64:
    """Flood from one voxel all that is deeper than the level and not taken, in its turn."""
    voxel, level = climber
    dz, dy, dx = moves
    label, own = word[voxel] >> LABEL << LABEL, turn[voxel]
    place, known = end, end
    while True:
        for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
            if level < word[neighbour] < MARK:
                word[neighbour] |= label
                turn[neighbour] = own
                front[known] = neighbour
                known += ONE
        if place == known:
            return known
        voxel = np.uint64(front[place])
        place += ONE


@compiled
def _walk(
    word: UInt64s,
    turn: NDArray[np.int32],
    queue: tuple[UInt32s, np.uint64, np.uint64, np.uint64],
    lower: tuple[UInt32s, UInt64s],
    level: np.uint64,
    moves: Moves,
) -> np.uint64:
    """Walk one voxel from front[begin:end] and the hills front[end:stop], in turn; those of this level stand behind."""
    front, base, end, stop = queue
    waiting, tail = lower
    dz, dy, dx = moves
    hill, known = end, stop
    while base < end or hill < stop:
        if hill == stop or (base < end and turn[front[base]] <= turn[front[hill]]):
            voxel = np.uint64(front[base])
            base += ONE
        else:
            voxel = np.uint64(front[hill])
            hill += ONE
        label, own = word[voxel] >> LABEL, turn[voxel]
        for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
            reached = word[neighbour]
            depth = reached & (MARK - ONE)
            if reached < MARK:
                if depth == level:
                    front[known] = neighbour
                    known += ONE
                else:
                    waiting[tail[depth]] = neighbour
                    tail[depth] += ONE
            elif reached & MARK == 0 or own != turn[neighbour] or label >= reached >> LABEL:
                # who came in an earlier turn stays; in one turn the smaller seed
                continue
            word[neighbour] = (label << LABEL) | MARK | depth
            turn[neighbour] = own
    return known
