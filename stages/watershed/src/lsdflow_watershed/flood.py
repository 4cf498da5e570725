"""The published watershed: seeds grow from deep to shallow until they meet; and the packed voxels that it uses.

1. Every seed voxel waits in the queue of its own (squared) distance to the boundary.
2. Take the first voxel of the deepest queue that is not empty.
3. Each neighbour without a label gets the label of this voxel and is added to the queue of *its own* distance. If that
   queue is deeper than the current one, it is next.
4. Repeat until all queues are empty.

The order (depth, then first come first served; neighbours -z, -y, -x, +x, +y, +z) is that of
`mahotas.cwatershed(max - distance, seeds)` in the published chain, and the result is the same in every voxel. Distances
are integers, so one queue per distance replaces the heap, and the cost per voxel is constant.

    voxel    | label: 31 bits | mark: 1 bit | depth: 32 bits |      one memory access per voxel
    The word of a seed voxel holds no depth, because the voxel already waits in the queue of its depth.

    . . . .     The volume has a rim of words with a label that no seed has. They are never reached, so voxels at faces
    . a b .     need no test.
    . c d .
    . . . .

    waiting  | depth 0: f g h . . . | depth 4: c d e . | depth 9: a b |
                         ^first ^tail
    Every voxel waits at most once, in the queue of its depth. So the number of voxels of each depth limits the length
    of its queue, and all queues share one array. At the beginning the voxels of seeds wait.

All numbers are unsigned, because then numba does not test indices for negative values, which halves the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

ONE = np.uint64(1)
# Labels use the bits from this one up. A voxel has been reached if it has a label or the mark.
LABEL = np.uint64(33)
MARK = np.uint64(1 << 32)
RIM = np.uint64(0x7FFF_FFFF << 33)

UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
LARGEST_VOLUME_VOX = 2**31 - 1


class PackedVoxels(NamedTuple):
    """Words with their rim; queues: voxels of depth d wait in waiting[first[d] : tail[d]].

    `moves`: from a voxel to its upper neighbours along z, y, x.
    """

    word: UInt64s
    waiting: UInt32s
    first: UInt64s
    tail: UInt64s
    moves: tuple[np.uint64, np.uint64, np.uint64]


def pack_voxels(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> PackedVoxels:
    """Words and queues before the flood, for a volume that is not empty.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^31 - 1, 0 = no seed.
    :param in_xy: do not cross from section to section.
    """
    nz, ny, nx = seeds.shape
    room = np.cumsum(np.bincount(distance_squared.ravel()), dtype=np.uint64)
    first = np.concatenate([np.zeros(1, np.uint64), room[:-1]])
    word = np.full((nz + 2) * (ny + 2) * (nx + 2), RIM, np.uint64)
    waiting, tail = np.empty(seeds.size, np.uint32), first.copy()
    _open(distance_squared, seeds, word, waiting, tail)
    # in_xy: the neighbour along z is the voxel itself, which already has a label
    z = 0 if in_xy else (ny + 2) * (nx + 2)
    return PackedVoxels(word, waiting, first, tail, (np.uint64(z), np.uint64(nx + 2), ONE))


def labels_of(words: PackedVoxels, shape: tuple[int, ...]) -> UInt32s:
    """The label of every voxel, without the rim."""
    nz, ny, nx = shape
    inner = words.word.reshape(nz + 2, ny + 2, nx + 2)[1:-1, 1:-1, 1:-1]
    return (inner >> LABEL).astype(np.uint32)


@compiled
def _open(distance: NDArray[np.int32], seeds: UInt32s, word: UInt64s, waiting: UInt32s, tail: UInt64s) -> None:
    nz, ny, nx = distance.shape
    for z in range(nz):
        for y in range(ny):
            begin = ((z + 1) * (ny + 2) + y + 1) * (nx + 2) + 1
            for x in range(nx):
                depth = np.uint64(distance[z, y, x])
                word[begin + x] = depth
                if seeds[z, y, x] != 0:
                    word[begin + x] = np.uint64(seeds[z, y, x]) << LABEL
                    waiting[tail[depth]] = begin + x
                    tail[depth] += ONE


def flood(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> UInt32s:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^31 - 1, 0 = no seed.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    words = pack_voxels(distance_squared, seeds, in_xy)
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
