"""What both floods begin with: a word per voxel, and a queue per depth.

    word     | label: 31 bits | mark: 1 bit | depth: 32 bits |      one memory access for all of a voxel
    A seed voxel has no depth in its word: it waits in the queue of its depth.

    . . . .     Around the volume lies a rim of words that bear a label no seed has: they are never reached, and no
    . a b .     voxel has to ask whether it lies at a face.
    . c d .
    . . . .

    waiting  | depth 0: f g h . . . | depth 4: c d e . | depth 9: a b |
                         ^first ^tail
    Every voxel waits at most once, in the queue of its depth: counting the voxels of each depth says how long its queue
    can become, and all queues share one array. In the beginning the voxels of seeds wait.

All numbers are unsigned: then no index is looked at for being negative, which halves the time of a flood.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

ONE = np.uint64(1)
# Labels stand above this bit. A mark alone, or a label: the voxel is reached.
LABEL = np.uint64(33)
MARK = np.uint64(1 << 32)
RIM = np.uint64(0x7FFF_FFFF << 33)

UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]


class FloodWords(NamedTuple):
    """Words with their rim; queues: voxels of depth d wait in waiting[first[d] : tail[d]].

    `moves`: from a voxel to its upper neighbours along z, y, x.
    """

    word: UInt64s
    waiting: UInt32s
    first: UInt64s
    tail: UInt64s
    moves: tuple[np.uint64, np.uint64, np.uint64]


def flood_words(distance_squared: NDArray[np.int32], seeds: UInt32s, in_xy: bool) -> FloodWords:
    """Words and queues before the flood, of a volume that is not empty.

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
    # without crossing, the neighbour is the voxel itself, labelled already
    z = 0 if in_xy else (ny + 2) * (nx + 2)
    return FloodWords(word, waiting, first, tail, (np.uint64(z), np.uint64(nx + 2), ONE))


def labels_of(words: FloodWords, shape: tuple[int, ...]) -> UInt32s:
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
