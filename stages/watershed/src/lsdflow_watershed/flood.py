"""The watershed itself: seeds grow from deep to shallow until they meet.

1. Every seed voxel waits in the queue of its own (squared) distance to the boundary.
2. Take the first voxel of the deepest queue that is not empty.
3. Each neighbour without a label takes the label of this voxel and joins the queue of *its own* distance, which may be
   deeper than the queue in use: then that one is next.
4. Until all queues are empty.

The order (depth, then first come first served; neighbours -z, -y, -x, +x, +y, +z) is that of
`mahotas.cwatershed(max - distance, seeds)`, and the result is the same voxel for voxel: the published chain. Distances
are integers, so a queue per distance replaces the heap: a few steps per voxel, no logarithm. Words and queues:
flood_words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled
from lsdflow_watershed.flood_words import LABEL, MARK, ONE, UInt32s, UInt64s, flood_words, labels_of

LARGEST_VOLUME_VOX = 2**31 - 1


def flood(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> UInt32s:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^31 - 1, 0 = no seed.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    words = flood_words(distance_squared, seeds, in_xy)
    _run_queues(words.word, words.waiting, words.first.copy(), words.tail, words.moves)
    return labels_of(words, seeds.shape)


@compiled
def _run_queues(
    word: UInt64s, waiting: UInt32s, head: UInt64s, tail: UInt64s, moves: tuple[np.uint64, np.uint64, np.uint64]
) -> None:
    dz, dy, dx = moves
    levels = np.uint64(head.size)
    while levels > 0:
        depth = levels - ONE
        place, deepest = head[depth], depth
        # the queue in use, until it is empty or a deeper one is not
        while place < tail[depth] and deepest == depth:
            voxel = np.uint64(waiting[place])
            place += ONE
            label = word[voxel] >> LABEL << LABEL
            for neighbour in (voxel - dz, voxel - dy, voxel - dx, voxel + dx, voxel + dy, voxel + dz):
                reached = word[neighbour]
                if reached < MARK:
                    word[neighbour] = label | reached
                    waiting[tail[reached]] = neighbour
                    tail[reached] += ONE
                    deepest = max(deepest, reached)
        head[depth] = place
        levels = deepest + ONE if deepest > depth else depth
