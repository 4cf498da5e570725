"""Segments of a graph that fits no memory: part by part, and above them only what touches other parts.

    level 0    part 0     part 1     part 2      A part holds the fragments of a range of ids, and the edges between
              a--b--c     d   e      f--g        them. A range of ids is a slab of the volume: ids count blocks or
                     \\   /     \\    /           voxels, row by row. Edges between parts are closed above, where
    level 1           c-d       e--f             their ends first meet in one part: eight of a level make one of
                       a part of the ends only   the next, until one is the whole.

1. Up. Each part finds its own segments for every threshold. Of its outer fragments (ends of edges that leave it) it
   tells the part above: fewer edges than there are of them, which join them at just the thresholds at which the part
   does; and for each threshold the name (smallest fragment) and the voxels of their segments so far.
2. A part above has the outer fragments of its parts for nodes, what they told and the edges closed here for edges,
   and is otherwise a part like any other. The last one has no outer fragments: its segments are final.
3. Down. Each part is answered the final name and voxels of the segments of its outer fragments. Its other segments
   were final from the beginning.

Joining is transitive and the smallest of smallest fragments is the smallest, so the answer is the one of the whole
graph, whatever the parts are: ranges are only what lets tables be written from the first id to the last.
Held at once: one part - its fragments, forest and segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled
from lsdflow_segment.components import Forest

UInt64s = NDArray[np.uint64]

# Parts of a level that make one of the next: 2 ** FAN_BITS.
FAN_BITS = 3


@dataclass(frozen=True, eq=False)
class Segments:
    """For each node, uint64 (n,): the name of its segment, and its voxels.

    What is told upwards counts the voxels of a segment at one of its nodes and is 0 at the others, so voxels add up.
    """

    names: UInt64s
    voxels: UInt64s


@dataclass(frozen=True, eq=False)
class Told:
    """What a part tells at a threshold: segments of its outer nodes, (b,), and edges u, v uint64 between outer nodes
    that were apart at the threshold before.
    """

    segments: Segments
    u: UInt64s
    v: UInt64s


# Names and voxels of the nodes before a part joins them, at a threshold (its number).
Known = Callable[[int], Segments]


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the graph: ids uint64 (n,) ascending, the forest over them, outer integers (b,) ascending: places of
    the nodes with edges that leave the part.
    """

    ids: UInt64s
    forest: Forest
    outer: NDArray[np.int64]

    def tell(self, thresholds: int, known: Known) -> Iterator[Told]:
        """For each threshold what the part tells of its outer nodes."""
        ahead = np.arange(len(self.outer))
        ids = self.ids[self.outer]
        for number, roots in enumerate(self.forest.partitions(thresholds)):
            joined = _joined(roots, known(number))
            own = roots[self.outer]
            _, first, which = np.unique(own, return_index=True, return_inverse=True)
            voxels = np.zeros(len(own), np.uint64)
            voxels[first] = joined.voxels[own[first]]
            now = first[which]
            behind = ahead[now[ahead] != ahead]
            ahead = ahead[now[ahead] == ahead]
            yield Told(Segments(joined.names[own], voxels), ids[now[behind]], ids[behind])

    def final(self, roots: NDArray[Any], known: Segments, answer: Segments) -> Segments:
        """Final names and voxels of the segments at one threshold, given what `known` says of the nodes (n,) and the
        answer at the outer ones (b,). Read it at the roots; what stands at other nodes means nothing.
        """
        joined = _joined(roots, known)
        own = roots[self.outer]
        joined.names[own], joined.voxels[own] = answer.names, answer.voxels
        return joined


@dataclass(frozen=True, eq=False)
class Cut:
    """Parts as ranges of ids: begins uint64 (p,) ascending, the smallest id of each part but of the first, which
    begins at 0.
    """

    begins: UInt64s

    @property
    def levels(self) -> int:
        """Number of levels, at least 1; the last has one part."""
        return 1 + -(-(len(self.begins) - 1).bit_length() // FAN_BITS)

    def parts(self, level: int) -> int:
        """Number of parts of a level."""
        return ((len(self.begins) - 1) >> (FAN_BITS * level)) + 1

    def number(self, level: int, part: int) -> int:
        """Number of a part among those of all levels."""
        return sum(self.parts(below) for below in range(level)) + part

    def above(self, part: NDArray[np.int64], level: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Numbers, at these levels, of the parts that hold parts of level 0, (n,)."""
        return part >> (FAN_BITS * level.astype(np.int64))

    def below(self, level: int, number: int) -> range:
        """Numbers of the parts of the level below that a part is made of."""
        first = number << FAN_BITS
        return range(first, min(first + (1 << FAN_BITS), self.parts(level - 1)))

    def part_of(self, ids: UInt64s) -> NDArray[np.int64]:
        """Number of the part of level 0 of each id, (n,)."""
        return np.searchsorted(self.begins[1:], ids, side="right")

    def meeting_level(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The lowest level at which two parts of level 0 are in one part, (n,)."""
        level = np.zeros(len(a), np.uint8)
        for below in range(self.levels - 1):
            level += (a >> (FAN_BITS * below)) != (b >> (FAN_BITS * below))
        return level


class IdHistogram:
    """How many ids lie where: counts in equal stretches, which are doubled when an id lies beyond the last."""

    def __init__(self, stretches: int = 1 << 20) -> None:
        self._counts = np.zeros(stretches, np.int64)
        self._shift = 0

    def add(self, ids: UInt64s) -> None:
        """Count ids, uint64 (n,)."""
        if not len(ids):
            return
        while int(ids.max()) >> self._shift >= len(self._counts):
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([pairs, np.zeros_like(pairs)])
            self._shift += 1
        np.add.at(self._counts, (ids >> np.uint64(self._shift)).astype(np.int64), 1)

    def cut(self, most: int) -> Cut:
        """Ranges of at most `most` ids each, where no stretch alone holds more."""
        begins, held = [0], 0
        for stretch in np.flatnonzero(self._counts).tolist():
            count = int(self._counts[stretch])
            if held and held + count > most:
                begins.append(stretch << self._shift)
                held = 0
            held += count
        return Cut(np.array(begins, np.uint64))


def _joined(roots: NDArray[Any], known: Segments) -> Segments:
    """Smallest name and sum of voxels of the nodes of each root; what stands at other nodes means nothing."""
    names, voxels = known.names.copy(), np.zeros(len(roots), np.uint64)
    _join(roots, known.names, known.voxels, names, voxels)
    return Segments(names, voxels)


@compiled
def _join(
    roots: NDArray[Any], known: NDArray[Any], counted: NDArray[Any], names: NDArray[Any], voxels: NDArray[Any]
) -> None:
    for node in range(len(roots)):
        root = roots[node]
        voxels[root] += counted[node]
        names[root] = min(names[root], known[node])
