"""Rows of a graph that another program made: what can be used of them, and everything that is wrong, counted.

Nothing is guessed: a graph with one wrong row is refused, with the number of wrong rows of each kind and an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_segment.sizes import SegmentSizes

UInt64s = NDArray[np.uint64]
NODES_HINT = "are these the fragments that the graph was made from? if they are a part of them: --cut-out"


@dataclass(frozen=True, eq=False)
class ImportedIds:
    """Nodes with voxels in the fragments, and nodes that were left out (cut-out only); uint64, ascending."""

    inside: UInt64s
    outside: UInt64s


class Faults:
    """Kinds of wrong rows, how many of each, and the first of them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def add(self, kind: str, examples: list[str], count: int) -> None:
        """Count rows of a kind; the first example of it is kept."""
        if count:
            self._counts[kind] = self._counts.get(kind, 0) + count
            self._first.setdefault(kind, examples[0])

    def require_none(self, what: str, where: str, fix: str) -> None:
        """BadData (65) with all kinds, if there is any."""
        if self._counts:
            found = "; ".join(f"{count} {kind} (first: {self._first[kind]})" for kind, count in self._counts.items())
            raise BadData(what, where=where, found=found, fix=fix)


class NodeImport:
    """Nodes, batch by batch; `counted` are the voxels in the fragments, for nodes that do not tell theirs.

    `cut_out`: the fragments are a part of the volume of the graph; nodes without a voxel there are left out.
    """

    def __init__(self, counted: SegmentSizes | None, cut_out: bool = False) -> None:
        self._counted = counted
        self._cut_out = cut_out
        self._ids: list[UInt64s] = []

    def take(self, ids: UInt64s, center_nm: NDArray[np.float64], size_vox: UInt64s | None) -> RagNodes:
        """The nodes of a batch, ids uint64 (n,), centres float64 (n, 3), with their voxels."""
        self._ids.append(ids)
        if self._counted is not None:
            size_vox = _looked_up(self._counted, ids)
        nodes = RagNodes(ids, center_nm, np.zeros(len(ids), np.uint64) if size_vox is None else size_vox)
        inside = nodes.size_vox > 0
        return RagNodes(ids[inside], center_nm[inside], nodes.size_vox[inside]) if self._cut_out else nodes

    def finish(self, where: str) -> ImportedIds:
        """All ids. BadData for id 0, ids that stand there twice, and nodes that are not the fragments."""
        ids, times = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._ids]), return_counts=True)
        inside = ids if self._counted is None else np.intersect1d(ids, self._counted.ids, assume_unique=True)
        outside = np.setdiff1d(ids[ids != 0], inside, assume_unique=True)
        faults = Faults()
        faults.add("nodes with id 0, which is background", ["id 0"], int((ids == 0).sum()))
        _add_ids(faults, "nodes that stand there more than once", ids[times > 1])
        if not self._cut_out:
            _add_ids(faults, "nodes without a voxel in the fragments", outside)
        if self._counted is not None:
            _add_ids(faults, "fragments without a node", np.setdiff1d(self._counted.ids, ids, assume_unique=True))
        faults.require_none("the nodes cannot be used", where, NODES_HINT)
        if not len(inside):
            raise BadData("the graph has no nodes", where=where)
        return ImportedIds(inside, outside)


class EdgeImport:
    """Edges of a merge function, batch by batch. Those that lead out of a cut-out are left out, and counted."""

    def __init__(self, nodes: ImportedIds) -> None:
        self._nodes = nodes
        self._faults = Faults()
        self.left_out = 0

    def take(self, u: UInt64s, v: UInt64s, score: NDArray[np.float64], never: NDArray[np.bool_]) -> RagEdges:
        """The usable edges of a batch with u < v; `never` (bool) marks null scores, which become NaN."""
        out = ~never & ~((score >= 0) & (score <= 1))
        outside = _found(self._nodes.outside, u)[1] | _found(self._nodes.outside, v)[1]
        inside = _found(self._nodes.inside, u)[1] & _found(self._nodes.inside, v)[1]
        kinds = {
            "edges to a fragment that is not a node": self._is_unknown(u) | self._is_unknown(v),
            "edges from a fragment to itself": u == v,
            "scores that are not a number": out & np.isnan(score),
            "scores outside [0, 1]": out & ~np.isnan(score),
        }
        for kind, wrong in kinds.items():
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                self._faults.add(kind, [f"{u[row]} - {v[row]}, score {score[row]}"], int(wrong.sum()))
        good = inside & ~np.logical_or.reduce(list(kinds.values()))
        self.left_out += int(outside.sum())
        lower, upper = np.minimum(u, v)[good], np.maximum(u, v)[good]
        return RagEdges(lower, upper, np.where(never, np.nan, score)[good].astype(np.float32))

    def finish(self, where: str) -> None:
        """BadData (65) that counts every kind of wrong edge, if there is any."""
        fix = "do nodes and edges belong to one run, and is score = 1 - affinity (null: never merged)?"
        self._faults.require_none("the edges cannot be used", where, fix)

    def _is_unknown(self, ids: UInt64s) -> NDArray[np.bool_]:
        return ~(_found(self._nodes.inside, ids)[1] | _found(self._nodes.outside, ids)[1])


def _found(ascending: UInt64s, ids: UInt64s) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Place of each id, and whether it is there."""
    place = np.minimum(np.searchsorted(ascending, ids), max(len(ascending) - 1, 0))
    known = ascending[place] == ids if len(ascending) else np.zeros(len(ids), np.bool_)
    return place, known


def _looked_up(sizes: SegmentSizes, ids: UInt64s) -> UInt64s:
    place, known = _found(sizes.ids, ids)
    voxels = np.zeros(len(ids), np.uint64)
    voxels[known] = sizes.voxels[place[known]].astype(np.uint64)
    return voxels


def _add_ids(faults: Faults, kind: str, ids: UInt64s) -> None:
    faults.add(kind, [f"id {i}" for i in ids[:1].tolist()], len(ids))
