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
    moves: tuple[int, int],
) -> None:
    """All levels, from deep to shallow; within a level step after step. Turns are counted through all of them."""
    first, tail = bounds
    front = np.empty(waiting.size, np.int32)
    # of a voxel that waits: the turn in which it was reached; then its own
    turn = np.zeros(word.size, np.int32)
    end = 0
    last_turn = 0
    for level in range(first.size - 1, -1, -1):
        begin = end
        for place in range(first[level], tail[level]):
            front[end] = waiting[place]
            end += 1
        while begin < end:
            last_turn = _take_turns(word, turn, (front, begin, end), last_turn)
            stop = _climb(word, turn, (front, begin, end), level, moves)
            begin, end = stop, _walk(word, turn, (front, begin, end, stop), (waiting, tail), level, moves)


@compiled
def _take_turns(
    word: NDArray[np.int64], turn: NDArray[np.int32], queue: tuple[NDArray[np.int32], int, int], last_turn: int
) -> int:
    """Settle the labels of front[begin:end] and number their turns: voxels reached from one turn share one."""
    front, begin, end = queue
    reached_from = -1
    for place in range(begin, end):
        voxel = front[place]
        word[voxel] &= ~np.int64(MARK)
        if turn[voxel] != reached_from:
            reached_from = turn[voxel]
            last_turn += 1
        turn[voxel] = last_turn
    return last_turn


@compiled
def _climb(
    word: NDArray[np.int64],
    turn: NDArray[np.int32],
    queue: tuple[NDArray[np.int32], int, int],
    level: int,
    moves: tuple[int, int],
) -> int:
    """Take the hills beside the voxels front[begin:end], in the order (turn, seed); their voxels stand behind them."""
    front, begin, end = queue
    dz, dy = moves
    climbers = front[:0].copy()
    known = 0
    for place in range(begin, end):
        voxel = np.int64(front[place])
        for neighbour in (voxel - dz, voxel - dy, voxel - 1, voxel + 1, voxel + dy, voxel + dz):
            if level < word[neighbour] < MARK:
                if known == climbers.size:
                    climbers = np.concatenate((climbers, np.empty(known + 64, np.int32)))
                climbers[known] = voxel
                known += 1
                break
    climbers = climbers[:known]
    order = np.argsort(np.array([(np.int64(turn[v]) << 30) | (word[v] >> LABEL) for v in climbers], np.int64))
    for climber in order:
        end = _take_hill(word, turn, front, end, (int(climbers[climber]), level), moves)
    return end


@compiled
def _take_hill(
    word: NDArray[np.int64],
    turn: NDArray[np.int32],
    front: NDArray[np.int32],
    end: int,
    climber: tuple[int, int],
    moves: tuple[int, int],
) -> int:
    """Flood from one voxel all that is deeper than the level and not taken, in its turn."""
    voxel, level = climber
    dz, dy = moves
    label, own = word[voxel] >> LABEL << LABEL, turn[voxel]
    place, known = end, end
    while True:
        for neighbour in (voxel - dz, voxel - dy, voxel - 1, voxel + 1, voxel + dy, voxel + dz):
            if level < word[neighbour] < MARK:
                word[neighbour] |= label
                turn[neighbour] = own
                front[known] = neighbour
                known += 1
        if place == known:
            return known
        voxel = int(front[place])
        place += 1


@compiled
def _walk(
    word: NDArray[np.int64],
    turn: NDArray[np.int32],
    queue: tuple[NDArray[np.int32], int, int, int],
    lower: tuple[NDArray[np.int32], NDArray[np.int64]],
    level: int,
    moves: tuple[int, int],
) -> int:
    """Walk one voxel from front[begin:end] and the hills front[end:stop], in turn; those of this level stand behind."""
    front, base, end, stop = queue
    waiting, tail = lower
    # from a voxel to the next section and row; 0: the neighbour is the voxel itself, labelled already
    dz, dy = moves
    hill, known = end, stop
    while base < end or hill < stop:
        if hill == stop or (base < end and turn[front[base]] <= turn[front[hill]]):
            voxel = np.int64(front[base])
            base += 1
        else:
            voxel = np.int64(front[hill])
            hill += 1
        label, own = word[voxel] >> LABEL, turn[voxel]
        for neighbour in (voxel - dz, voxel - dy, voxel - 1, voxel + 1, voxel + dy, voxel + dz):
            reached = word[neighbour]
            if reached < 0 or (reached >= MARK and not reached & MARK):
                continue
            depth = reached & (MARK - 1)
            if reached >= MARK:
                # who came in an earlier turn stays; in one turn the smaller seed
                if own != turn[neighbour] or label >= reached >> LABEL:
                    continue
            elif depth == level:
                front[known] = neighbour
                known += 1
            else:
                waiting[tail[depth]] = neighbour
                tail[depth] += 1
            word[neighbour] = (label << LABEL) | MARK | depth
            turn[neighbour] = own
    return known
