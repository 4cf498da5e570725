"""Segments of all thresholds from one reading of the graph and one union-find sweep.

An edge joins two fragments when its score <= threshold, so a HIGHER threshold merges MORE and partitions are nested:

    score   0.1   0.25  0.3      0.6         NaN = never merged, by no threshold
            a-b   b-c   d-e      c-d         e-f
    t = 0.2  {a b} {c} {d} {e} {f}
    t = 0.4  {a b c} {d e} {f}
    t = 0.7  {a b c d e} {f}

1. Each edge gets the number of the first threshold that merges it, its level; edges that none merges are dropped.
2. Edges of level 0 are united at once: every threshold merges them. With one threshold that is all.
3. The others wait in a buffer. When it is full, the waiting edges are swept in the order of their levels, and only
   those that join two parts stay (a minimum spanning forest: no partition changes). So memory is that of the fragments
   and the buffer, never of all edges.
4. The remaining edges are swept once more; after the last edge of each level, the state is the partition of that
   threshold.
5. The union keeps the smaller fragment as root, so a segment is named by its smallest fragment: never 0, and the same
   whatever the order of the edges. (The published scripts numbered components from 0, which made one neuron
   background.)

Scores are float32; thresholds are compared as float32, so a score that was stored as 0.3 merges at threshold 0.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_runtime.compiled import compiled
from lsdflow_segment.sorted_ids import SortedIds

UInt64s = NDArray[np.uint64]

_MAX_POSITION_32 = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Forest:
    """The edges that decide: fewer than `nodes`, each of which joins two parts.

    u, v integers (m,): positions of the nodes; level uint16 (m,) ascending: number of the first threshold that merges.
    """

    nodes: int
    u: NDArray[Any]
    v: NDArray[Any]
    level: NDArray[np.uint16]

    @classmethod
    def empty(cls) -> Forest:
        """No nodes."""
        return cls(0, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint16))

    def partitions(self, thresholds: int, first: int = 0) -> Iterator[NDArray[Any]]:
        """For each threshold from number `first` the position of the smallest node of each node's segment, (n,).

        It is one array, good until the next is asked for.
        """
        parent = np.arange(self.nodes, dtype=_position_type(self.nodes))
        done = 0
        for number in range(first, thresholds):
            merged = int(np.searchsorted(self.level, number, side="right"))
            _unite(self.u[done:merged], self.v[done:merged], parent)
            _flatten(parent)
            yield parent
            done = merged


class ThresholdSweep:
    """Collects edges in any order and any number of batches, then gives the partition of each threshold.

    `fragments` uint64 (n,) ascending, distinct, none 0; `thresholds` ascending. `buffer_edges` bounds the waiting
    edges (about 34 bytes each while they are swept).
    """

    def __init__(self, fragments: UInt64s, thresholds: Sequence[float], buffer_edges: int = 1 << 24) -> None:
        require_fragments(fragments)
        self.fragments = fragments
        self._places = SortedIds(fragments)
        self._thresholds = np.asarray(thresholds, dtype=np.float32)
        self._position_type = _position_type(len(fragments))
        self._united = np.arange(len(fragments), dtype=self._position_type)
        self._buffer_edges = buffer_edges
        self._kept = self._no_edges()
        self._waiting: list[tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]]] = []
        self._waiting_edges = 0

    def add(self, u: UInt64s, v: UInt64s, scores: NDArray[np.float32]) -> None:
        """Add edges: fragment ids uint64 (m,) each, scores float32 (m,) in [0, 1] or NaN.

        Raises BadData if an edge that merges somewhere names a fragment that is not a node.
        """
        scores = scores.astype(np.float32, copy=False)
        merging = np.flatnonzero(scores <= self._thresholds[-1])
        level = np.searchsorted(self._thresholds, scores[merging], side="left").astype(np.uint16)
        ends = places_of(u[merging], self._places), places_of(v[merging], self._places)
        lowest = level == 0
        _unite(ends[0][lowest], ends[1][lowest], self._united)
        higher = ~lowest
        self._waiting.append((ends[0][higher], ends[1][higher], level[higher]))
        self._waiting_edges += len(self._waiting[-1][2])
        if self._waiting_edges > self._buffer_edges:
            self._compact()

    def partitions(self) -> Iterator[NDArray[Any]]:
        """For each threshold the position (in `fragments`) of the segment's smallest fragment, (n,) integers.

        The segment ids are `fragments[positions]`. The array is a copy; thresholds come in ascending order.
        """
        self._compact()
        u, v, level = self._kept
        bounds = np.searchsorted(level, np.arange(1, len(self._thresholds) + 1))
        _flatten(self._united)
        yield self._united.copy()
        parent = self._united.copy() if len(self._thresholds) > 1 else self._united
        for begin, end in itertools.pairwise(bounds):
            _unite(u[begin:end], v[begin:end], parent)
            _flatten(parent)
            yield parent.copy()

    def forest(self) -> Forest:
        """What decides all partitions, in 10 bytes per edge."""
        self._compact()
        _flatten(self._united)
        joined = np.flatnonzero(self._united != np.arange(len(self._united), dtype=self._united.dtype))
        u, v, level = self._kept
        return Forest(
            len(self._united),
            np.concatenate([joined.astype(u.dtype), u]),
            np.concatenate([self._united[joined], v]),
            np.concatenate([np.zeros(len(joined), np.uint16), level]),
        )

    def _compact(self) -> None:
        """Keep of the waiting edges only a minimum spanning forest, ordered by level."""
        parts = [self._kept, *self._waiting]
        u, v, level = (np.concatenate([part[column] for part in parts]) for column in range(3))
        order = np.argsort(level, kind="stable")
        u, v, level = u[order], v[order], level[order]
        joined = _unite(u, v, self._united.copy())
        self._kept = (u[joined], v[joined], level[joined])
        self._waiting = []
        self._waiting_edges = 0

    def _no_edges(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]]:
        empty = np.zeros(0, self._position_type)
        return empty, empty, np.zeros(0, np.uint16)


def places_of(ids: UInt64s, nodes: SortedIds) -> NDArray[Any]:
    """Positions of fragments, uint64 (m,), among the nodes. BadData naming one that is not among them."""
    position: NDArray[Any] = np.empty(len(ids), _position_type(len(nodes.ids)))
    unknown = nodes.find(ids, position)
    if unknown:
        raise BadData(
            f"{unknown} edges name a fragment that is not a node of the graph",
            wanted="both ends among the nodes",
            found=f"fragment {int(ids[np.argmin(position)])}",
            fix="nodes and edges come from different runs: run agglomerate again",
        )
    return position


def _position_type(nodes: int) -> type[np.signedinteger[Any]]:
    return np.int32 if nodes <= _MAX_POSITION_32 else np.int64


def require_fragments(fragments: UInt64s) -> None:
    """BadData unless there are fragments, ascending, distinct, none 0."""
    if not len(fragments):
        raise BadData("the graph has no fragments", fix="is the volume empty or masked out? look at the fragments")
    if fragments[0] == 0:
        raise BadData("a node of the graph has id 0, which is background", wanted="fragment ids from 1")
    if len(fragments) > 1 and not bool(np.all(fragments[1:] > fragments[:-1])):
        raise BadData("fragment ids are not ascending and distinct", where="nodes of the graph")


@compiled
def _unite(u: NDArray[Any], v: NDArray[Any], parent: NDArray[Any]) -> NDArray[np.bool_]:
    """Join the ends of each edge, the smaller root staying root; tells which edges joined two parts."""
    joined = np.zeros(len(u), np.bool_)
    for edge in range(len(u)):
        a, b = u[edge], v[edge]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a < b:
            parent[b] = a
        elif b < a:
            parent[a] = b
        joined[edge] = a != b
    return joined


@compiled
def _flatten(parent: NDArray[Any]) -> None:
    """Point every node at its root. Parents are never larger than their children, so one pass upwards is enough."""
    for node in range(len(parent)):
        parent[node] = parent[parent[node]]
