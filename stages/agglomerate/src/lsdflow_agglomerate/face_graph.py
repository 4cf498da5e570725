"""Complete faces: the counts from which each pair of touching fragments is scored, summed over the rows of all blocks.

    block 1:  (u, v)  affinity 200: 3 faces                       pair (u, v)   180  200  201     rows first[p] to
    block 2:  (u, v)  affinity 180: 1 face, 200: 2 faces   --->                   1    5    2     first[p + 1] of pair p
    block 3:  (u, v)  affinity 201: 2 faces

The rows of a block are already ascending, so nothing is sorted: two lists are merged in one pass through both. A list
waits until the next one is at least half as long (so rows are merged about log2(blocks) times, not blocks times):

    waiting, in rows:    900   300  |  100  + 60   -->   900   300  160   -->   900  460   -->   1360

Counts are integers, so the sum does not depend on the order or the shape of the blocks.

`origin` breaks ties (see hierarchical_merging): for a pair of fragments it is the pair itself; for a pair of regions
it is the last of the fragment pairs that it consists of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.graph import RagFaces, RegionFaces
from lsdflow_runtime.compiled import compiled

UInt64s = NDArray[np.uint64]
Rows = tuple[UInt64s, UInt64s, NDArray[np.uint8], UInt64s]
Int64s = NDArray[np.int64]


def sum_faces(parts: Iterable[RagFaces]) -> RagFaces:
    """All rows, ascending by (u, v, affinity), each once; rows of the same pair and affinity are summed."""
    waiting: list[Rows] = []
    for part in parts:
        waiting.append(_ascending(part))
        while len(waiting) > 1 and len(waiting[-2][0]) <= 2 * len(waiting[-1][0]):
            last = waiting.pop()
            waiting[-1] = _merged(waiting[-1], last)
    while len(waiting) > 1:
        last = waiting.pop()
        waiting[-1] = _merged(waiting[-1], last)
    return RagFaces.of(*waiting[0]) if waiting else RagFaces.empty()


def _ascending(part: RagFaces) -> Rows:
    """The rows in ascending order, each once; blocks provide this order, a database may not."""
    u, v, affinity, count = part.u, part.v, part.affinity, part.count
    if not _is_ascending(u, v, affinity):
        order = np.lexsort((affinity, v, u))
        u, v, affinity = u[order], v[order], affinity[order]
        begins = np.flatnonzero(np.append(True, (np.diff(u) != 0) | (np.diff(v) != 0) | (np.diff(affinity) != 0)))
        u, v, affinity, count = u[begins], v[begins], affinity[begins], np.add.reduceat(count[order], begins)
    # arrays read from a file may be read-only, for which numba would compile the loop again
    count = np.require(count, None, "W")
    return np.require(u, None, "W"), np.require(v, None, "W"), np.require(affinity, None, "W"), count


@compiled
def _is_ascending(u: UInt64s, v: UInt64s, affinity: NDArray[np.uint8]) -> bool:
    for row in range(1, len(u)):
        if u[row] < u[row - 1]:
            return False
        if u[row] == u[row - 1]:
            if v[row] < v[row - 1]:
                return False
            if v[row] == v[row - 1] and affinity[row] <= affinity[row - 1]:
                return False
    return True


@compiled
def _merged(one: Rows, other: Rows) -> Rows:
    u, v, affinity, count = one
    u_other, v_other, affinity_other, count_other = other
    most = len(u) + len(u_other)
    u_sum, v_sum = np.empty(most, np.uint64), np.empty(most, np.uint64)
    affinity_sum, count_sum = np.empty(most, np.uint8), np.empty(most, np.uint64)
    a, b, made = 0, 0, 0
    while a < len(u) or b < len(u_other):
        if b == len(u_other):
            order = -1
        elif a == len(u):
            order = 1
        else:
            order = _order(u[a], u_other[b])
            order = _order(v[a], v_other[b]) if order == 0 else order
            order = _order(affinity[a], affinity_other[b]) if order == 0 else order
        if order <= 0:
            u_sum[made], v_sum[made], affinity_sum[made], count_sum[made] = u[a], v[a], affinity[a], count[a]
            a += 1
        else:
            u_sum[made], v_sum[made] = u_other[b], v_other[b]
            affinity_sum[made], count_sum[made] = affinity_other[b], count_other[b]
        if order == 0:
            count_sum[made] += count_other[b]
        b += order >= 0
        made += 1
    return u_sum[:made].copy(), v_sum[:made].copy(), affinity_sum[:made].copy(), count_sum[:made].copy()


@compiled
def _order(a: np.unsignedinteger, b: np.unsignedinteger) -> int:
    return int(a > b) - int(a < b)


@dataclass(frozen=True, eq=False)
class FaceGraph:
    """Pairs u < v uint64 (P,), ascending by (u, v), each once; `origin` uint64 (P, 2).

    Pair p has rows first[p] to first[p + 1] (int64 (P + 1,)): affinity u8 ascending, count int64 > 0.
    """

    u: UInt64s
    v: UInt64s
    origin: UInt64s
    first: Int64s
    affinity: NDArray[np.uint8]
    count: Int64s

    def __len__(self) -> int:
        return len(self.u)


def add_faces(parts: Iterable[RagFaces]) -> FaceGraph:
    """The sum of the rows of all blocks."""
    merged = sum_faces(parts)
    pairs = _begins(merged.u, merged.v)
    u, v = merged.u[pairs], merged.v[pairs]
    first = np.append(pairs, len(merged)).astype(np.int64)
    return FaceGraph(u, v, np.stack([u, v], axis=1), first, merged.affinity, merged.count.astype(np.int64))


def join_graphs(graphs: Iterable[FaceGraph]) -> FaceGraph:
    """One graph from several; pairs that occur in more than one are summed."""
    parts = list(graphs)
    summed = add_faces(_rows(graph) for graph in parts)
    u, v = (np.concatenate([np.zeros(0, np.uint64), *(getattr(p, name) for p in parts)]) for name in ("u", "v"))
    origin = np.concatenate([np.zeros((0, 2), np.uint64), *(p.origin for p in parts)])
    order = np.lexsort((origin[:, 1], origin[:, 0], v, u))
    last = np.append(_begins(u[order], v[order])[1:], len(u)) - 1 if len(u) else np.zeros(0, np.int64)
    return FaceGraph(summed.u, summed.v, origin[order][last], summed.first, summed.affinity, summed.count)


def rows_of(graph: FaceGraph) -> RegionFaces:
    """A graph of regions as rows that can be stored; graph_of is the inverse."""
    origin_u, origin_v = np.repeat(graph.origin, np.diff(graph.first), axis=0).T
    return RegionFaces(**vars(_rows(graph)), origin_u=origin_u.copy(), origin_v=origin_v.copy())


def graph_of(rows: RegionFaces) -> FaceGraph:
    """The graph of rows from rows_of."""
    pairs = _begins(rows.u, rows.v)
    origin = np.stack([rows.origin_u[pairs], rows.origin_v[pairs]], axis=1)
    first = np.append(pairs, len(rows)).astype(np.int64)
    return FaceGraph(rows.u[pairs], rows.v[pairs], origin, first, rows.affinity, rows.count.astype(np.int64))


def _rows(graph: FaceGraph) -> RagFaces:
    length = np.diff(graph.first)
    u, v = np.repeat(graph.u, length), np.repeat(graph.v, length)
    return RagFaces.of(u, v, graph.affinity, graph.count.astype(np.uint64))


def _begins(*columns: NDArray[np.unsignedinteger]) -> Int64s:
    """Where a row differs from the one before; the first row does."""
    differs = np.zeros(len(columns[0]), bool)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs).astype(np.int64)
