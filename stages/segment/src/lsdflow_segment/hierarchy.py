"""Segments of a graph that does not fit into memory: part by part, and above them only what touches other parts.

    level 0    part 0     part 1     part 2      A part has the fragments of a range of ids, and the edges between
              a--b--c     d   e      f--g        them. A range of ids is a slab of the volume: ids count blocks or
                     \\   /     \\    /           voxels, row by row. Edges between parts belong to the level above,
    level 1           c-d       e--f             where their ends are first in one part: eight parts of a level make
                   boundary nodes only           one of the next, until one part is the whole graph.

1. Up. Each part finds its own segments for every threshold. It summarizes its boundary nodes (ends of edges that leave
   it) for the part above: edges, fewer than boundary nodes, that join them at exactly the thresholds at which the part
   does; and for each threshold the id (smallest fragment) and the voxels of their segments so far.
2. A part of a higher level has the boundary nodes of its parts as nodes; its edges are those of the summaries and
   those between its parts. It is otherwise a part like any other. The last part has no boundary nodes: its segments are
   final.
3. Down. Each part receives the final id and voxels of the segments of its boundary nodes. Its other segments were final
   from the beginning.

Connectivity is transitive, and the smallest of smallest fragments is the smallest. So the result is that of the whole
graph, whatever the parts are; ranges of ids only allow tables to be written from the first id to the last. Memory holds
one part: its fragments, forest and segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled
from lsdflow_segment.components import Forest, UInt64s


@dataclass(frozen=True, eq=False)
class Segments:
    """For each node, uint64 (n,): the id of its segment, and its voxels.

    In a summary, the voxels of a segment are at one of its nodes and 0 at the others, so that voxels add up.
    """

    ids: UInt64s
    voxels: UInt64s


@dataclass(frozen=True, eq=False)
class BoundarySummary:
    """What the part above needs at a threshold: segments of the boundary nodes, (b,), and edges u, v uint64 between
    boundary nodes that were apart at the threshold before.
    """

    segments: Segments
    u: UInt64s
    v: UInt64s


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the graph: ids uint64 (n,) ascending, the forest over them, and boundary integers (b,) ascending:
    positions of the nodes with edges that leave the part.
    """

    ids: UInt64s
    forest: Forest
    boundary: NDArray[np.int64]

    def summaries(self, thresholds: int, known: Callable[[int], Segments]) -> Iterator[BoundarySummary]:
        """For each threshold the summary of the boundary nodes.

        `known` gives, for the number of a threshold, the segments of the nodes before this part joins them.
        """
        first_of_group = np.arange(len(self.boundary))
        ids = self.ids[self.boundary]
        for number, roots in enumerate(self.forest.roots(thresholds)):
            joined = _joined(roots, known(number))
            own = roots[self.boundary]
            _, first, which = np.unique(own, return_index=True, return_inverse=True)
            voxels = np.zeros(len(own), np.uint64)
            voxels[first] = joined.voxels[own[first]]
            now = first[which]
            merged = first_of_group[now[first_of_group] != first_of_group]
            first_of_group = first_of_group[now[first_of_group] == first_of_group]
            yield BoundarySummary(Segments(joined.ids[own], voxels), ids[now[merged]], ids[merged])

    def final(self, roots: NDArray[Any], known: Segments, at_boundary: Segments) -> Segments:
        """Final ids and voxels of the segments at one threshold, valid at the roots only.

        `known`: segments of the nodes (n,) before this part joins them. `at_boundary`: final segments of the boundary
        nodes (b,).
        """
        joined = _joined(roots, known)
        own = roots[self.boundary]
        joined.ids[own], joined.voxels[own] = at_boundary.ids, at_boundary.voxels
        return joined


def _joined(roots: NDArray[Any], known: Segments) -> Segments:
    """Smallest id and sum of voxels of the nodes of each root; valid at the roots only."""
    ids, voxels = known.ids.copy(), np.zeros(len(roots), np.uint64)
    _join(roots, known.ids, known.voxels, ids, voxels)
    return Segments(ids, voxels)


@compiled
def _join(
    roots: NDArray[Any], known: NDArray[Any], counted: NDArray[Any], ids: NDArray[Any], voxels: NDArray[Any]
) -> None:
    for node in range(len(roots)):
        root = roots[node]
        voxels[root] += counted[node]
        ids[root] = min(ids[root], known[node])
