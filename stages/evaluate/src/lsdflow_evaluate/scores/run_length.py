"""Expected run length (ERL): how far one can walk along a neuron before the segmentation makes an error.

    skeleton   o---o---o---o---o---o        nodes carry the segment that they are in
    segment    7   7   7   9   9   0
    runs       |-- 7 --|   |9 |             one edge is split (7|9), one is omitted (9|0)

1. An edge of a skeleton is correct if both its nodes are in the same segment, not 0. If they are in two segments it is
   split, if a node is in 0 it is omitted; both have run length 0.
2. A segment merges if it holds nodes of two neurons or more (at least `merge_min_nodes` of each); the correct edges
   inside it become merged and have run length 0.
3. The run of a connected skeleton in a segment is the length of its correct edges there. A point chosen at random on
   the skeletons is in a run of length L with probability L / total length, so ERL = sum of L^2 / total length.
4. The largest possible ERL is that of the skeletons themselves: sum of (length of each connected skeleton)^2 / total
   length. The normalised ERL is their quotient, 0 to 1.

A neuron that the region cuts is several connected skeletons of one neuron: no segmentation can join them
across the gap, and a segment that holds two of them does not merge. Source: Januszewski et al. 2018, as counted by
funlib.evaluate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lsdflow_contract.errors import BadData

UInt64s = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Skeletons:
    """Skeleton graphs: nodes at `positions_nm` (n, 3) z, y, x, of `neurons` uint64 (n,) > 0; `edges` int64 (m, 2)."""

    positions_nm: Floats
    neurons: UInt64s
    edges: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.positions_nm.shape != (len(self.neurons), 3) or self.edges.ndim != 2 or self.edges.shape[1] != 2:
            shapes = (self.positions_nm.shape, self.neurons.shape, self.edges.shape)
            raise BadData("skeleton columns do not fit together", wanted="(n, 3), (n,), (m, 2)", found=shapes)
        if len(self.edges) and (self.edges.min() < 0 or self.edges.max() >= len(self.neurons)):
            raise BadData("a skeleton edge names a node that is not there", found=int(self.edges.max()))
        if (self.neurons[self.edges[:, 0]] != self.neurons[self.edges[:, 1]]).any():
            raise BadData("a skeleton edge joins two neurons", fix="every skeleton needs its own id")

    @property
    def lengths_nm(self) -> Floats:
        """Length of each edge, nm (m,)."""
        ends = self.positions_nm[self.edges]
        return np.asarray(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1), np.float64)

    def only(self, kept: NDArray[np.bool_]) -> Skeletons:
        """The nodes where `kept` (n,) is true, and the edges between them."""
        place = np.cumsum(kept) - 1
        edges = self.edges[kept[self.edges].all(axis=1)]
        return Skeletons(self.positions_nm[kept], self.neurons[kept], place[edges].astype(np.int64).reshape(-1, 2))


@dataclass(frozen=True)
class RunLengths:
    """Lengths in nm; `normalized_erl` in [0, 1]; numbers of edges by fate, of merging segments and split skeletons."""

    expected_run_length_nm: float
    max_erl_nm: float
    normalized_erl: float
    total_path_length_nm: float
    edges: int
    correct_edges: int
    split_edges: int
    omitted_edges: int
    merged_edges: int
    merging_segments: int
    split_skeletons: int
    skeletons: int


def run_lengths(skeletons: Skeletons, segments: UInt64s, merge_min_nodes: int = 1) -> RunLengths:
    """ERL of a segmentation.

    `segments` uint64 (n,): segment of each node, 0 = none. Raises BadData if the skeletons have no length.
    """
    lengths = skeletons.lengths_nm
    total = float(lengths.sum())
    if not total > 0:
        raise BadData("the skeletons have no length", found=f"{len(lengths)} edges", fix="is the region too small?")
    component = _components(skeletons)[skeletons.edges[:, 0]]
    first, second = segments[skeletons.edges[:, 0]], segments[skeletons.edges[:, 1]]
    omitted = (first == 0) | (second == 0)
    split = ~omitted & (first != second)
    merging = _merging_segments(skeletons.neurons, segments, merge_min_nodes)
    merged = ~omitted & ~split & np.isin(first, merging)
    correct = ~omitted & ~split & ~merged
    found = _sum_of_squares((component[correct], first[correct]), lengths[correct]) / total
    best = _sum_of_squares((component,), lengths) / total
    return RunLengths(
        expected_run_length_nm=found,
        max_erl_nm=best,
        normalized_erl=found / best,
        total_path_length_nm=total,
        edges=len(lengths),
        correct_edges=int(correct.sum()),
        split_edges=int(split.sum()),
        omitted_edges=int(omitted.sum()),
        merged_edges=int(merged.sum()),
        merging_segments=len(merging),
        split_skeletons=len(np.unique(component[split])),
        skeletons=len(np.unique(component)),
    )


def _components(skeletons: Skeletons) -> NDArray[Any]:
    """Number of the connected skeleton of each node."""
    nodes = len(skeletons.neurons)
    ones = np.ones(len(skeletons.edges), np.int8)
    graph = coo_array((ones, (skeletons.edges[:, 0], skeletons.edges[:, 1])), shape=(nodes, nodes))
    _, component = connected_components(graph, directed=False)
    return np.asarray(component)


def _merging_segments(neurons: UInt64s, segments: UInt64s, merge_min_nodes: int) -> UInt64s:
    """Segments (not 0) that hold at least `merge_min_nodes` nodes of each of two neurons or more."""
    inside = segments != 0
    pairs, nodes = np.unique(np.stack([segments[inside], neurons[inside]]), axis=1, return_counts=True)
    held, neurons_held = np.unique(pairs[0, nodes >= merge_min_nodes], return_counts=True)
    return np.asarray(held[neurons_held > 1])


def _sum_of_squares(keys: tuple[NDArray[Any], ...], lengths: Floats) -> float:
    """Sum over distinct keys of (sum of their lengths)^2."""
    if not len(lengths):
        return 0.0
    columns = np.stack([np.asarray(key, np.uint64) for key in keys])
    _, run = np.unique(columns, axis=1, return_inverse=True)
    return float((np.bincount(run.ravel(), weights=lengths) ** 2).sum())
