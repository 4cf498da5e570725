"""Rows of a graph that another program made: those that can be used, and a count of everything that is wrong.

Nothing is guessed: a graph with one wrong row is refused, with the number of wrong rows of each kind and an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_segment.sizes import SegmentSizes, UInt64s

NODES_HINT = "are these the fragments that the graph was made from? if they are a part of them: --cut-out"


@dataclass(frozen=True, eq=False)
class ImportedIds:
    """Nodes with voxels in the fragments, and nodes that were left out (cut-out only); uint64, ascending."""

    inside: UInt64s
    outside: UInt64s


class WrongRows:
    """Kinds of wrong rows, how many there are of each, and the first one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def add(self, kind: str, example: str, count: int) -> None:
        """Count rows of a kind; the first example of it is kept."""
        if count:
            self._counts[kind] = self._counts.get(kind, 0) + count
            self._first.setdefault(kind, example)

    def add_ids(self, kind: str, ids: UInt64s) -> None:
        """Count nodes of a kind by their ids, uint64 (n,)."""
        if len(ids):
            self.add(kind, f"id {ids[0]}", len(ids))

    def require_none(self, what: str, where: str, fix: str) -> None:
        """Raise BadData (65) with all kinds, if there is any."""
        if self._counts:
            found = "; ".join(f"{count} {kind} (first: {self._first[kind]})" for kind, count in self._counts.items())
            raise BadData(what, where=where, found=found, fix=fix)


class NodeCheck:
    """Checks nodes, batch by batch. `counted`: the voxels in the fragments, for nodes without sizes.

    `cut_out`: the fragments are a part of the volume of the graph; nodes without a voxel there are left out.
    """

    def __init__(self, counted: SegmentSizes | None, cut_out: bool = False) -> None:
        self._counted = counted
        self._cut_out = cut_out
        self._ids: list[UInt64s] = []

    def add(self, ids: UInt64s, center_nm: NDArray[np.float64], size_vox: UInt64s | None) -> RagNodes:
        """The usable nodes of a batch, with their voxels: ids uint64 (n,), centres float64 (n, 3)."""
        self._ids.append(ids)
        if self._counted is not None:
            size_vox = _voxels_of(ids, self._counted)
        nodes = RagNodes(ids, center_nm, np.zeros(len(ids), np.uint64) if size_vox is None else size_vox)
        inside = nodes.size_vox > 0
        return RagNodes(ids[inside], center_nm[inside], nodes.size_vox[inside]) if self._cut_out else nodes

    def finish(self, where: str) -> ImportedIds:
        """All ids. Raises BadData for id 0, repeated ids, and nodes that are not the fragments."""
        ids, times = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._ids]), return_counts=True)
        inside = ids if self._counted is None else np.intersect1d(ids, self._counted.ids, assume_unique=True)
        outside = np.setdiff1d(ids[ids != 0], inside, assume_unique=True)
        wrong = WrongRows()
        wrong.add_ids("nodes with id 0, which is background", ids[ids == 0])
        wrong.add_ids("nodes that are listed more than once", ids[times > 1])
        if not self._cut_out:
            wrong.add_ids("nodes without a voxel in the fragments", outside)
        if self._counted is not None:
            wrong.add_ids("fragments without a node", np.setdiff1d(self._counted.ids, ids, assume_unique=True))
        wrong.require_none("the nodes cannot be used", where, NODES_HINT)
        if not len(inside):
            raise BadData("the graph has no nodes", where=where)
        return ImportedIds(inside, outside)


class EdgeCheck:
    """Checks edges of a merge function, batch by batch. Those that leave a cut-out are left out, and counted."""

    def __init__(self, nodes: ImportedIds) -> None:
        self._nodes = nodes
        self._wrong = WrongRows()
        self.left_out = 0

    def add(self, u: UInt64s, v: UInt64s, score: NDArray[np.float64], never: NDArray[np.bool_]) -> RagEdges:
        """The usable edges of a batch with u < v; `never` (bool) marks null scores, which become NaN."""
        out_of_range = ~never & ~((score >= 0) & (score <= 1))
        inside_u, inside_v = _are_among(u, self._nodes.inside), _are_among(v, self._nodes.inside)
        outside_u, outside_v = _are_among(u, self._nodes.outside), _are_among(v, self._nodes.outside)
        kinds = {
            "edges to a fragment that is not a node": ~(inside_u | outside_u) | ~(inside_v | outside_v),
            "edges from a fragment to itself": u == v,
            "scores that are not a number": out_of_range & np.isnan(score),
            "scores outside [0, 1]": out_of_range & ~np.isnan(score),
        }
        for kind, wrong in kinds.items():
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                self._wrong.add(kind, f"{u[row]} - {v[row]}, score {score[row]}", int(wrong.sum()))
        good = inside_u & inside_v & ~np.logical_or.reduce(list(kinds.values()))
        self.left_out += int((outside_u | outside_v).sum())
        lower, upper = np.minimum(u, v)[good], np.maximum(u, v)[good]
        return RagEdges(lower, upper, np.where(never, np.nan, score)[good].astype(np.float32))

    def finish(self, where: str) -> None:
        """Raise BadData (65) with counts of every kind of wrong edge, if there is any."""
        fix = "do nodes and edges belong to one run, and is score = 1 - affinity (null: never merged)?"
        self._wrong.require_none("the edges cannot be used", where, fix)


def _find(ids: UInt64s, ascending: UInt64s) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The position of each id in `ascending`, and whether it is there."""
    position = np.minimum(np.searchsorted(ascending, ids), max(len(ascending) - 1, 0))
    known = ascending[position] == ids if len(ascending) else np.zeros(len(ids), np.bool_)
    return position, known


def _are_among(ids: UInt64s, ascending: UInt64s) -> NDArray[np.bool_]:
    return _find(ids, ascending)[1]


def _voxels_of(ids: UInt64s, sizes: SegmentSizes) -> UInt64s:
    """Voxels of each id; 0 for those that have none."""
    position, known = _find(ids, sizes.ids)
    voxels = np.zeros(len(ids), np.uint64)
    voxels[known] = sizes.voxels[position[known]].astype(np.uint64)
    return voxels
