"""The watershed itself: seeds grow from deep to shallow until they meet.

1. Every seed voxel waits in the queue of its own (squared) distance to the boundary.
2. Take the first voxel of the deepest queue that is not empty.
3. Each neighbour without a label takes the label of this voxel and joins the queue of *its own* distance, which may be
   deeper than the queue in use: then that one is next.
4. Until all queues are empty.

    waiting:  | depth 0: f g h . . . | depth 4: c d e . | depth 9: a b |
                         ^head ^tail
    Every voxel waits exactly once, in the queue of its distance: counting the voxels of each distance says how long
    its queue can become, and all queues share one array.

The order (depth, then first come first served; neighbours -z, -y, -x, +x, +y, +z) is that of
`mahotas.cwatershed(max - distance, seeds)`, and the result is the same voxel for voxel: the published chain. Distances
are integers, so a queue per distance replaces the heap: a few steps per voxel, no logarithm. Label and distance of a
voxel share one 64-bit word (label above, distance below), in a volume with a rim of labelled voxels around it: one
memory access per neighbour, and no face to ask for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

LARGEST_VOLUME_VOX = 2**31 - 1


def flood(distance_squared: NDArray[np.int32], seeds: NDArray[np.uint32], in_xy: bool) -> NDArray[np.uint32]:
    """Grow `seeds` over the whole volume; every voxel that a seed reaches gets its number.

    :param distance_squared: (z, y, x), not negative.
    :param seeds: (z, y, x) numbers below 2^31, 0 = no seed.
    :param in_xy: do not cross from section to section.
    """
    if seeds.size == 0:
        return seeds.copy()
    deepest = int(distance_squared.max())
    room = np.cumsum(np.bincount(distance_squared.ravel(), minlength=deepest + 1))
    head = np.concatenate([[0], room[:-1]])
    labels: NDArray[np.uint32] = _flood(distance_squared, seeds, head, in_xy)
    return labels


@compiled
def _flood(
    distance: NDArray[np.int32], seeds: NDArray[np.uint32], head: NDArray[np.int64], in_xy: bool
) -> NDArray[np.uint32]:
    nz, ny, nx = distance.shape
    row, plane = nx + 2, (nx + 2) * (ny + 2)
    word = np.full(plane * (nz + 2), np.int64(1) << 32, np.int64)
    waiting = np.empty(distance.size, np.int32)
    tail = head.copy()
    for z in range(nz):
        for y in range(ny):
            first = (z + 1) * plane + (y + 1) * row + 1
            for x in range(nx):
                depth = np.int64(distance[z, y, x])
                word[first + x] = (np.int64(seeds[z, y, x]) << 32) | depth
                if seeds[z, y, x] != 0:
                    waiting[tail[depth]] = first + x
                    tail[depth] += 1
    _run_queues(word, waiting, head, tail, (0 if in_xy else plane, row))
    labels = np.empty(distance.shape, np.uint32)
    for z in range(nz):
        for y in range(ny):
            first = (z + 1) * plane + (y + 1) * row + 1
            for x in range(nx):
                labels[z, y, x] = word[first + x] >> 32
    return labels


@compiled
def _run_queues(
    word: NDArray[np.int64],
    waiting: NDArray[np.int32],
    head: NDArray[np.int64],
    tail: NDArray[np.int64],
    steps: tuple[int, int],
) -> None:
    # from a voxel to the next section and row; 0: the neighbour is the voxel itself, labelled already
    dz, dy = steps
    depth = np.int64(head.size - 1)
    while depth >= 0:
        if head[depth] == tail[depth]:
            depth -= 1
            continue
        voxel = np.int64(waiting[head[depth]])
        head[depth] += 1
        label = word[voxel] >> 32 << 32
        for neighbour in (voxel - dz, voxel - dy, voxel - 1, voxel + 1, voxel + dy, voxel + dz):
            reached = word[neighbour]
            if reached >> 32 == 0:
                word[neighbour] = label | reached
                waiting[tail[reached]] = neighbour
                tail[reached] += 1
                depth = max(depth, reached)
