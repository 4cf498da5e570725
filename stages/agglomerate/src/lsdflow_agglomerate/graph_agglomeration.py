"""Agglomeration of a whole graph, or of a part of it: computes merge tree and edge scores from complete faces.

The result equals that of one waterz run on the whole volume with the same fragments, up to the order of equal scores.
It needs the graph only, so voxels are read once, block by block. hierarchical_merging has the algorithm. In parts
(super-blocks):

    +---------+---------+      1. In each part, fragments with faces outside of it (^) wait, and so does every region
    | o-o   ^ | ^   o-o |         that would merge with them first. All others are merged.
    | | |  /  |  \\  | | |      2. Parts are joined in pairs, or in any other way: the remaining graphs are summed, and
    | o-o-o   |   o-o-o |         fewer fragments wait. At the top none waits.
    +---------+---------+      Together, the merges of all parts are those of the whole graph, whatever the parts.
                               3. On the way down, a pair that was not merged in its part has become a pair of regions,
                                  and gets their score from the level above (settled).

(Lu, Zlateski, Seung: Large-scale image segmentation based on distributed clustering algorithms, arXiv 2106.10795.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import FaceGraph, join_graphs
from lsdflow_agglomerate.hierarchical_merging import merge_regions
from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS
from lsdflow_agglomerate.region_arrays import (
    Edges,
    Nodes,
    chosen_by_member,
    histograms_of,
    new_edges,
    new_merges,
    new_nodes,
    new_table,
)
from lsdflow_contract.graph import RagEdges

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class MergeTree:
    """Merges (M,), cheapest first: a < b uint64 are the smallest fragments of both regions, score float32.

    `origin` uint64 (M, 2): the pair of fragments that decided among equal scores.
    """

    a: UInt64s
    b: UInt64s
    score: NDArray[np.float32]
    origin: UInt64s


@dataclass(frozen=True, eq=False)
class SuperBlock:
    """The result for a part of the graph: its merges, and the graph of the remaining regions.

    For each pair of the part (P,): `score` of the merge that joined it, float32, or NaN; and `become`, int64, the index
    of the pair in `left` that it is now, -1 if it was joined.
    """

    merges: MergeTree
    left: FaceGraph
    score: NDArray[np.float32]
    become: Int64s


def score_graph(graph: FaceGraph, merge_function: str) -> RagEdges:
    """Agglomerate the whole graph; score of a pair = score of the merge that joined its fragments, NaN if none did.

    :param merge_function: a name of :data:`lsdflow_agglomerate.merge_functions.MERGE_FUNCTIONS`.
    """
    part = agglomerate_super_block(graph_of_faces(graph, merge_function), np.zeros(0, np.uint64), merge_function)
    return RagEdges(graph.u, graph.v, part.score)


def graph_of_faces(graph: FaceGraph, merge_function: str) -> FaceGraph:
    """The part of complete faces that a merge function uses: with initmax only the highest affinity of each, once."""
    return _highest_only(graph, np.ones(len(graph), bool)) if MERGE_FUNCTIONS[merge_function].initmax else graph


def graph_of_parts(left: Sequence[FaceGraph], merge_function: str) -> FaceGraph:
    """The graph of a super-block, summed from the remaining graphs of its parts.

    A pair in several parts is a face that was cut between them. Both its fragments waited, so no merge has changed it
    yet. With initmax it counts its highest affinity once, like any other face.
    """
    graph = join_graphs(left)
    if not MERGE_FUNCTIONS[merge_function].initmax:
        return graph
    places = [_places(part.u, part.v, graph.u, graph.v) for part in left]
    return _highest_only(graph, np.bincount(np.concatenate(places), minlength=len(graph)) > 1)


def agglomerate_super_block(graph: FaceGraph, waiting: UInt64s, merge_function: str) -> SuperBlock:
    """Do those merges in a part of the graph that are also made in the whole graph.

    :param graph: all rows of the part (graph_of_faces), or the summed remaining graphs of its parts (graph_of_parts).
    :param waiting: fragments (W,), at least those with rows outside the part; none = the part is the whole graph.
    :param merge_function: a name of :data:`lsdflow_agglomerate.merge_functions.MERGE_FUNCTIONS`.
    """
    run = _Run.of(graph, waiting)
    merges = run.merge(merge_function)
    left, become = run.left()
    return SuperBlock(merges, left, run.edges.pair_score, become)


def settled(graph: FaceGraph, part: SuperBlock, above: RagEdges) -> RagEdges:
    """Final scores of the pairs of a part, in their order.

    :param above: final scores, from the level above, of the remaining pairs of the part. Pairs that are missing there
        are scored by another part.
    """
    place = _places(part.left.u, part.left.v, above.u, above.v)
    open_pairs = part.become >= 0
    place_of_pair = np.where(open_pairs, place[part.become] if len(place) else -1, -1)
    score = part.score.copy()
    score[place_of_pair >= 0] = above.merge_score[place_of_pair[place_of_pair >= 0]]
    kept = ~open_pairs | (place_of_pair >= 0)
    return RagEdges(graph.u[kept], graph.v[kept], score[kept])


def _places(u: UInt64s, v: UInt64s, known_u: UInt64s, known_v: UInt64s) -> Int64s:
    """The indices of pairs (N,) in the known pairs (ascending by (u, v)); -1 = missing."""
    if not len(known_u) or not len(u):
        return np.full(len(u), -1, np.int64)
    ids = np.unique(np.concatenate([u, v, known_u, known_v]))
    code, known = (_codes(ids, *pair) for pair in ((u, v), (known_u, known_v)))
    place = np.minimum(np.searchsorted(known, code), len(known) - 1)
    return np.where(known[place] == code, place, -1)


def _codes(ids: UInt64s, u: UInt64s, v: UInt64s) -> Int64s:
    return (np.searchsorted(ids, u) * len(ids) + np.searchsorted(ids, v)).astype(np.int64)


def _highest_only(graph: FaceGraph, chosen: NDArray[np.bool_]) -> FaceGraph:
    """The graph with only the highest affinity, counted once, for the `chosen` pairs (P,)."""
    last = np.zeros(len(graph.affinity), bool)
    last[graph.first[1:] - 1] = True
    of_chosen = np.repeat(chosen, np.diff(graph.first))
    kept = last | ~of_chosen
    count = np.where(of_chosen, 1, graph.count)[kept]
    rows = np.where(chosen, 1, np.diff(graph.first))
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])
    return FaceGraph(graph.u, graph.v, graph.origin, first, graph.affinity[kept], count)


@dataclass(frozen=True)
class _Run:
    """Arrays of one run of the loop; node n is fragment ids[n], origin o is the pair origins[o]."""

    ids: UInt64s
    origins: UInt64s
    edges: Edges
    nodes: Nodes

    @classmethod
    def of(cls, graph: FaceGraph, waiting: UInt64s) -> _Run:
        """Start with one region per fragment of the graph; the ids `waiting` (uint64 (N,)) must not merge."""
        ids = np.unique(np.concatenate([graph.u, graph.v]))
        ends = np.stack([np.searchsorted(ids, graph.u), np.searchsorted(ids, graph.v)], axis=1).astype(np.int64)
        origins, origin = np.unique(graph.origin, axis=0, return_inverse=True)
        edges = new_edges(ends.ravel(), origin.reshape(-1).astype(np.int64), graph.first, graph.affinity, graph.count)
        return cls(ids, origins, edges, new_nodes(ends.ravel(), np.isin(ids, waiting)))

    def merge(self, merge_function: str) -> MergeTree:
        """Run the loop; returns the merges in their order, cheapest first."""
        merges = new_merges(len(self.ids))
        code = MERGE_FUNCTIONS[merge_function].code
        merge_regions(self.edges, self.nodes, new_table(len(self.edges.alive)), merges, code)
        made = int(merges.made[0])
        a, b = self.ids[merges.a[:made]], self.ids[merges.b[:made]]
        return MergeTree(a, b, merges.score[:made], self.origins[merges.origin[:made]])

    def left(self) -> tuple[FaceGraph, Int64s]:
        """The edges between the remaining regions; and for each edge of the input its index in these, or -1."""
        edges = self.edges
        alive = np.flatnonzero(edges.alive)
        names = self.nodes.smallest[edges.ends.reshape(-1, 2)[alive]]
        u, v = names.min(axis=1), names.max(axis=1)
        order = np.lexsort((v, u))
        alive, u, v = alive[order], u[order], v[order]
        first, rows = histograms_of(edges, alive)
        origin = self.origins[edges.origin[alive]]
        graph = FaceGraph(self.ids[u], self.ids[v], origin, first, edges.affinity[rows], edges.times[rows])
        return graph, chosen_by_member(edges, alive)
