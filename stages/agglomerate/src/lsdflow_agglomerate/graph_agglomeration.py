"""Agglomeration of a whole graph, or of a part of it: complete faces in, merge tree and scores of edges out.

Equal to waterz, run once on the whole volume with the same fragments, up to the order of equal scores; but from the
graph alone, so that voxels are read once, block by block. How: priority_merging. In parts (super-blocks):

    +---------+---------+      1. In each part, fragments that rows outside it name (^) wait, and whatever would merge
    | o-o   ^ | ^   o-o |         with them first. The rest merges.
    | | |  /  |  \\  | | |      2. Parts are joined two by two, or any other way: what is left of their graphs is added
    | o-o-o   |   o-o-o |         up, and fewer fragments wait. At the top none does.
    +---------+---------+      The merges of all parts together are those of the whole graph, whatever the parts.

(Lu, Zlateski, Seung: Large-scale image segmentation based on distributed clustering algorithms, arXiv 2106.10795.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import FaceGraph
from lsdflow_agglomerate.priority_merging import merge_regions
from lsdflow_agglomerate.region_arrays import (
    MEAN,
    Edges,
    Nodes,
    histograms_of,
    new_edges,
    new_merges,
    new_nodes,
    new_table,
)
from lsdflow_contract.errors import InternalError
from lsdflow_contract.graph import RagEdges

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
INITMAX = "_initmax"


@dataclass(frozen=True, eq=False)
class MergeTree:
    """Merges (M,), cheapest first: a < b uint64 are the smallest fragments of both regions, score float32.

    `origin` uint64 (M, 2): the pair of fragments that decided among equal scores.
    """

    a: UInt64s
    b: UInt64s
    score: NDArray[np.float32]
    origin: UInt64s

    @classmethod
    def of_parts(cls, parts: list[MergeTree]) -> MergeTree:
        """The merges of all parts, cheapest first."""
        a, b, score = (np.concatenate([getattr(part, name) for part in parts]) for name in ("a", "b", "score"))
        origin = np.concatenate([part.origin for part in parts])
        order = np.lexsort((origin[:, 1], origin[:, 0], score))
        return cls(a[order], b[order], score[order], origin[order])


@dataclass(frozen=True, eq=False)
class SuperBlock:
    """What came of a part of the graph: its merges, and the graph of the regions that are left."""

    merges: MergeTree
    left: FaceGraph


def score_graph(graph: FaceGraph, merge_function: str) -> RagEdges:
    """Agglomerate the whole graph; score of a pair = score of the merge that joined its fragments, NaN if none did.

    :param merge_function: a name of :data:`lsdflow_agglomerate.merge_functions.MERGE_FUNCTIONS`.
    """
    if merge_function.endswith(INITMAX):
        graph = _highest_only(graph)
    run = _Run.of(graph, np.zeros(0, np.uint64))
    run.merge(merge_function)
    return RagEdges(graph.u, graph.v, run.edges.pair_score)


def merge_tree(graph: FaceGraph, merge_function: str) -> MergeTree:
    """The merges of the whole graph."""
    return agglomerate_super_block(graph, np.zeros(0, np.uint64), merge_function).merges


def agglomerate_super_block(graph: FaceGraph, waiting: UInt64s, merge_function: str) -> SuperBlock:
    """Merge in a part of the graph what would be merged if all of it were known.

    :param graph: all rows of the part, or the sum of what is left of smaller parts.
    :param waiting: fragments (W,) that rows outside the part name; none = the part is the whole.
    :param merge_function: mean or hist_quant_Q; the highest affinity of a face (initmax) is not known in a part.
    """
    if merge_function.endswith(INITMAX):
        raise InternalError("initmax needs complete faces", found=merge_function)
    run = _Run.of(graph, waiting)
    merges = run.merge(merge_function)
    return SuperBlock(merges, run.left())


def quantile_of(merge_function: str) -> int:
    """The quantile that a merge function scores by; MEAN for the mean."""
    if merge_function == "mean":
        return MEAN
    return int(merge_function.removeprefix("hist_quant_").removesuffix(INITMAX))


def _highest_only(graph: FaceGraph) -> FaceGraph:
    """Of each face only its highest affinity, once."""
    pairs = len(graph)
    highest = graph.affinity[graph.first[1:] - 1]
    return FaceGraph(graph.u, graph.v, graph.origin, np.arange(pairs + 1), highest, np.ones(pairs, np.int64))


@dataclass(frozen=True)
class _Run:
    """Arrays of one run of the loop; node n is fragment ids[n], origin o is the pair origins[o]."""

    ids: UInt64s
    origins: UInt64s
    edges: Edges
    nodes: Nodes

    @classmethod
    def of(cls, graph: FaceGraph, waiting: UInt64s) -> _Run:
        """Every fragment of the graph a region of its own; the ids `waiting` (uint64 (N,)) must not merge."""
        ids = np.unique(np.concatenate([graph.u, graph.v]))
        ends = np.stack([np.searchsorted(ids, graph.u), np.searchsorted(ids, graph.v)], axis=1).astype(np.int64)
        origins, origin = np.unique(graph.origin, axis=0, return_inverse=True)
        edges = new_edges(ends.ravel(), origin.reshape(-1).astype(np.int64), graph.first, graph.affinity, graph.count)
        return cls(ids, origins, edges, new_nodes(ends.ravel(), np.isin(ids, waiting)))

    def merge(self, merge_function: str) -> MergeTree:
        """Run the loop; the merges in their order, cheapest first."""
        merges = new_merges(len(self.ids))
        merge_regions(self.edges, self.nodes, new_table(len(self.edges.alive)), merges, quantile_of(merge_function))
        made = int(merges.made[0])
        a, b = self.ids[merges.a[:made]], self.ids[merges.b[:made]]
        return MergeTree(a, b, merges.score[:made], self.origins[merges.origin[:made]])

    def left(self) -> FaceGraph:
        """The edges between the regions that are left."""
        edges = self.edges
        alive = np.flatnonzero(edges.alive)
        names = self.nodes.smallest[edges.ends.reshape(-1, 2)[alive]]
        u, v = names.min(axis=1), names.max(axis=1)
        order = np.lexsort((v, u))
        alive, u, v = alive[order], u[order], v[order]
        first, rows = histograms_of(edges, alive)
        origin = self.origins[edges.origin[alive]]
        return FaceGraph(self.ids[u], self.ids[v], origin, first, edges.affinity[rows], edges.times[rows])
