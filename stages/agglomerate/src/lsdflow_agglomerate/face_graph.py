"""Complete faces: what every pair of touching fragments is scored by, added up from the rows of all blocks.

    block 1:  (u, v)  affinity 200: 3 faces                       pair (u, v)   180  200  201     rows first[p] to
    block 2:  (u, v)  affinity 180: 1 face, 200: 2 faces   --->                   1    5    2     first[p + 1] of pair p
    block 3:  (u, v)  affinity 201: 2 faces

`origin` breaks ties (see priority_merging): of a pair of fragments it is the pair itself; of a pair of regions, the
last of the pairs of fragments that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_sums import sum_faces
from lsdflow_contract.graph import RagFaces, RegionFaces

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


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
    """Add up the rows of all blocks."""
    merged = sum_faces(parts)
    pairs = _begins(merged.u, merged.v)
    u, v = merged.u[pairs], merged.v[pairs]
    first = np.append(pairs, len(merged)).astype(np.int64)
    return FaceGraph(u, v, np.stack([u, v], axis=1), first, merged.affinity, merged.count.astype(np.int64))


def join_graphs(graphs: Iterable[FaceGraph]) -> FaceGraph:
    """One graph of several; pairs that stand in more than one are added up."""
    parts = list(graphs)
    summed = add_faces(_rows(graph) for graph in parts)
    u, v = (np.concatenate([np.zeros(0, np.uint64), *(getattr(p, name) for p in parts)]) for name in ("u", "v"))
    origin = np.concatenate([np.zeros((0, 2), np.uint64), *(p.origin for p in parts)])
    order = np.lexsort((origin[:, 1], origin[:, 0], v, u))
    last = np.append(_begins(u[order], v[order])[1:], len(u)) - 1 if len(u) else np.zeros(0, np.int64)
    return FaceGraph(summed.u, summed.v, origin[order][last], summed.first, summed.affinity, summed.count)


def rows_of(graph: FaceGraph) -> RegionFaces:
    """A graph of regions as rows that can be stored; graph_of gives it back."""
    origin_u, origin_v = np.repeat(graph.origin, np.diff(graph.first), axis=0).T
    return RegionFaces(**vars(_rows(graph)), origin_u=origin_u.copy(), origin_v=origin_v.copy())


def graph_of(rows: RegionFaces) -> FaceGraph:
    """The graph of rows as rows_of made them."""
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
