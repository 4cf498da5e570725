"""Segments of all thresholds from one reading of the graph: a union-find sweep over edges in the order of their scores.

An edge joins two fragments when its score <= threshold, so a HIGHER threshold merges MORE, and the segments of a lower
threshold lie inside those of a higher one:

    score   0.1   0.25  0.3      0.6         NaN = never merged, at no threshold
            a-b   b-c   d-e      c-d         e-f
    t = 0.2  {a b} {c} {d} {e} {f}
    t = 0.4  {a b c} {d e} {f}
    t = 0.7  {a b c d e} {f}

1. Each edge gets its level: the number of the first threshold that merges it. Edges that no threshold merges are
   dropped.
2. Edges of level 0 are united at once, since every threshold merges them. With one threshold that is all.
3. The other edges wait in a buffer. When it is full, they are swept in the order of their levels, and only those that
   join two components are kept: a minimum spanning forest (Kruskal), which has the same components at every threshold.
   So memory is that of the fragments and the buffer, never of all edges.
4. The remaining edges are swept once more. After the last edge of each level, the state is that threshold's segments.
5. The union keeps the smaller fragment as the root, so the id of a segment is that of its smallest fragment: never 0,
   and independent of the order of the edges. (The published scripts numbered components from 0, which made one neuron
   background.)

Scores are float32. Thresholds are compared as float32, so a score that was stored as 0.3 merges at threshold 0.3.
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

UInt64s = NDArray[np.uint64]

_MAX_POSITION_32 = 2**31 - 1
# Mean number of ids in one bucket of SortedIds.
_IDS_PER_BUCKET = 8


@dataclass(frozen=True, eq=False)
class Forest:
    """A minimum spanning forest: fewer edges than `nodes`, which give the segments of every threshold.

    u, v integers (m,): positions of the nodes. level uint16 (m,) ascending: number of the first threshold that merges.
    """

    nodes: int
    u: NDArray[Any]
    v: NDArray[Any]
    level: NDArray[np.uint16]

    @classmethod
    def empty(cls) -> Forest:
        """A forest without nodes."""
        return cls(0, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint16))

    def roots(self, thresholds: int, first: int = 0) -> Iterator[NDArray[Any]]:
        """For each threshold from number `first`: the position of the smallest node of each node's segment, (n,).

        All are one array, valid until the next one is computed.
        """
        parent = np.arange(self.nodes, dtype=_position_type(self.nodes))
        done = 0
        for number in range(first, thresholds):
            merged = int(np.searchsorted(self.level, number, side="right"))
            _unite(self.u[done:merged], self.v[done:merged], parent)
            _flatten(parent)
            yield parent
            done = merged


# Edges that wait in memory, about 34 bytes each.
BUFFER_EDGES = 1 << 24


class ThresholdSweep:
    """Collects edges in any order and in any number of batches, then gives the segments of each threshold.

    `fragments` uint64 (n,) ascending, distinct, none 0. `thresholds` ascending. `buffer_edges` bounds the number of
    edges that wait in memory (about 34 bytes each while they are swept). Raises BadData for other fragments.
    """

    def __init__(self, fragments: UInt64s, thresholds: Sequence[float], buffer_edges: int = BUFFER_EDGES) -> None:
        require_fragments(fragments)
        self._sorted_fragments = SortedIds(fragments)
        self._thresholds = np.asarray(thresholds, dtype=np.float32)
        self._united = np.arange(len(fragments), dtype=_position_type(len(fragments)))
        self._buffer_edges = buffer_edges
        nowhere = np.zeros(0, self._united.dtype)
        self._kept: tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]] = (nowhere, nowhere, np.zeros(0, np.uint16))
        self._waiting: list[tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]]] = []
        self._waiting_edges = 0

    def add(self, u: UInt64s, v: UInt64s, scores: NDArray[np.float32]) -> None:
        """Add edges: fragment ids uint64 (m,) each, scores float32 (m,) in [0, 1] or NaN.

        Raises BadData if an edge that some threshold merges names a fragment that is not a node.
        """
        scores = scores.astype(np.float32, copy=False)
        merging = np.flatnonzero(scores <= self._thresholds[-1])
        level = np.searchsorted(self._thresholds, scores[merging], side="left").astype(np.uint16)
        ends = positions_of(u[merging], self._sorted_fragments), positions_of(v[merging], self._sorted_fragments)
        lowest = level == 0
        _unite(ends[0][lowest], ends[1][lowest], self._united)
        higher = ~lowest
        self._waiting.append((ends[0][higher], ends[1][higher], level[higher]))
        self._waiting_edges += len(self._waiting[-1][2])
        if self._waiting_edges > self._buffer_edges:
            self._compact()

    def roots(self) -> Iterator[NDArray[Any]]:
        """For each threshold, ascending: the position (in `fragments`) of the smallest fragment of each fragment's
        segment, integers (n,), a new array each. The segment ids are `fragments[roots]`.
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
        """A spanning forest that gives the segments of every threshold, in 10 bytes per edge."""
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
        """Keep only a minimum spanning forest of the waiting edges, ordered by level."""
        batches = [self._kept, *self._waiting]
        u, v, level = (np.concatenate([batch[column] for batch in batches]) for column in range(3))
        order = np.argsort(level, kind="stable")
        u, v, level = u[order], v[order], level[order]
        joined = _unite(u, v, self._united.copy())
        self._kept = (u[joined], v[joined], level[joined])
        self._waiting = []
        self._waiting_edges = 0


class SortedIds:
    """Finds the positions of ids in `ids`, uint64 (n,) ascending and distinct, n > 0.

    A table over the leading bits of the ids leads to a short bucket, which is then searched:

        ids      | 3  7 | 12 14 15 |   | 61 |        buckets by (id - smallest) >> shift
        begins     0      2          5   5      6    a binary search of the whole list would miss the cache at each step

    The table takes at most 1 byte per id. Ids that lie close together make long buckets, in which the search is binary:
    it is never slower than without the table.
    """

    def __init__(self, ids: UInt64s) -> None:
        self.ids = ids
        span = int(ids[-1]) - int(ids[0]) + 1
        wanted = max(1, len(ids) // _IDS_PER_BUCKET)
        self._shift = max(0, span.bit_length() - wanted.bit_length())
        buckets = ((span - 1) >> self._shift) + 1
        self._begins = np.zeros(buckets + 1, np.uint32 if len(ids) < 2**32 else np.uint64)
        _fill_begins(ids, np.uint64(self._shift), self._begins)

    def find(self, wanted: UInt64s, positions: NDArray[Any]) -> int:
        """Fill `positions`, integers (m,), with the position of each of `wanted`, uint64 (m,), or -1 if it is unknown.

        Returns the number of unknown ids.
        """
        return int(_find(wanted, self.ids, self._begins, np.uint64(self._shift), positions))


def positions_of(ids: UInt64s, nodes: SortedIds) -> NDArray[Any]:
    """Positions of fragments, uint64 (m,), among the nodes. Raises BadData naming one that is not a node."""
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


def require_fragments(fragments: UInt64s) -> None:
    """Raise BadData unless there are fragments, ascending, distinct, none 0."""
    if not len(fragments):
        raise BadData("the graph has no fragments", fix="is the volume empty or masked out? check the fragments")
    if fragments[0] == 0:
        raise BadData("a node of the graph has id 0, which is background", wanted="fragment ids from 1")
    if len(fragments) > 1 and not bool(np.all(fragments[1:] > fragments[:-1])):
        raise BadData("fragment ids are not ascending and distinct", where="nodes of the graph")


def _position_type(nodes: int) -> type[np.signedinteger[Any]]:
    return np.int32 if nodes <= _MAX_POSITION_32 else np.int64


@compiled
def _unite(u: NDArray[Any], v: NDArray[Any], parent: NDArray[Any]) -> NDArray[np.bool_]:
    """Join the ends of each edge, the smaller root remaining the root; True for edges that joined two components."""
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


@compiled
def _fill_begins(ids: NDArray[Any], shift: Any, begins: NDArray[Any]) -> None:
    """Where each bucket begins, and the end."""
    bucket = 0
    for place in range(len(ids)):
        own = np.int64((ids[place] - ids[0]) >> shift)
        while bucket < own:
            bucket += 1
            begins[bucket] = place
    begins[bucket + 1 :] = len(ids)


@compiled
def _find(wanted: NDArray[Any], ids: NDArray[Any], begins: NDArray[Any], shift: Any, positions: NDArray[Any]) -> int:
    first, last = ids[0], ids[-1]
    unknown = 0
    for place in range(len(wanted)):
        id_ = wanted[place]
        positions[place] = -1
        if first <= id_ <= last:
            bucket = (id_ - first) >> shift
            low, high = np.int64(begins[bucket]), np.int64(begins[bucket + np.uint64(1)])
            while high - low > 4:
                middle = (low + high) >> 1
                if ids[middle] <= id_:
                    low = middle
                else:
                    high = middle
            while low < high and ids[low] < id_:
                low += 1
            if low < high and ids[low] == id_:
                positions[place] = low
        if positions[place] < 0:
            unknown += 1
    return unknown
