"""Counts, block by block, how many voxels each pair of label and truth object shares.

A contingency table is the list of distinct (label, truth) pairs with the number of voxels that have both. The sum of
the tables of disjoint blocks is the table of the whole volume, so scores are exact for any division into blocks, and
memory is that of the distinct pairs:

    labels  7 7 9      truth  1 1 1       label truth voxels
            7 9 9             1 2 0    ->     7     1      3
                                              9     1      1
                                              9     2      1      (the voxel with truth 0 is only counted as unlabelled)

1. Both arrays are read along x. A run is a stretch in which neither label changes. One run is one row, so a block of a
   million voxels has about ten thousand rows to sort, not a million.
2. Rows are sorted by (label, truth) and equal neighbours are summed.
3. Tables are merged by step 2. `ContingencySum` collects rows until they are as many as the merged ones, so that each
   row is sorted a logarithmic number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

_WAITING_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Contingency:
    """Distinct (label, truth) pairs in ascending order, truth never 0.

    `labels`, `truths` uint64 (n,); `voxels` int64 (n,), all > 0; `unlabelled_vox` is the number of voxels left out
    because their truth is 0. Labels are fragment or segment ids; label 0 is kept as a row.
    """

    labels: UInt64s
    truths: UInt64s
    voxels: Int64s
    unlabelled_vox: int = 0

    @property
    def total_vox(self) -> int:
        """Number of voxels that have a truth label."""
        return int(self.voxels.sum())

    def relabel(self, fragments: UInt64s, segments: UInt64s) -> Contingency:
        """The table of the segmentation that results from these labels with a lookup table.

        `fragments` uint64 (m,) ascending and distinct, `segments` uint64 (m,). Label 0 stays 0.
        Raises BadData if a label is not in `fragments`.
        """
        position = positions_in(self.labels, fragments, "the contingency table")
        relabelled = np.zeros_like(self.labels)
        known = position >= 0
        relabelled[known] = segments[position[known]]
        return _merged(relabelled, self.truths, self.voxels, self.unlabelled_vox)


def contingency(labels: NDArray[Any], truth: NDArray[Any]) -> Contingency:
    """The contingency table of one block.

    `labels`, `truth`: integer arrays of one shape, ids >= 0 (converted to uint64). Raises BadData if shapes differ.
    """
    if labels.shape != truth.shape:
        raise BadData(
            "segmentation and truth do not cover the same voxels",
            wanted=f"shape {truth.shape}",
            found=f"shape {labels.shape}",
        )
    starts, lengths = _runs(labels.ravel(), truth.ravel())
    run_labels = labels.ravel()[starts].astype(np.uint64)
    run_truths = truth.ravel()[starts].astype(np.uint64)
    labelled = run_truths != 0
    return _merged(run_labels[labelled], run_truths[labelled], lengths[labelled], int(lengths[~labelled].sum()))


class ContingencySum:
    """A running sum of contingency tables; its memory is that of the distinct pairs."""

    def __init__(self) -> None:
        self._merged = empty_contingency()
        self._waiting: list[Contingency] = []
        self._waiting_rows = 0

    def add(self, table: Contingency) -> None:
        """Add the table of voxels that have not been counted yet."""
        self._waiting.append(table)
        self._waiting_rows += len(table.voxels)
        if self._waiting_rows > max(_WAITING_ROWS, len(self._merged.voxels)):
            self.table()

    def table(self) -> Contingency:
        """The sum of everything added so far."""
        if self._waiting:
            self._merged = merged([self._merged, *self._waiting])
            self._waiting = []
            self._waiting_rows = 0
        return self._merged


def empty_contingency() -> Contingency:
    """The contingency table without voxels."""
    return Contingency(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64))


def merged(tables: list[Contingency]) -> Contingency:
    """The sum of the tables of disjoint sets of voxels; the order does not matter."""
    if not tables:
        return empty_contingency()
    return _merged(
        np.concatenate([table.labels for table in tables]),
        np.concatenate([table.truths for table in tables]),
        np.concatenate([table.voxels for table in tables]),
        sum(table.unlabelled_vox for table in tables),
    )


def positions_in(ids: UInt64s, sorted_ids: UInt64s, what: str) -> Int64s:
    """Position of each id in an ascending list; -1 for id 0; BadData naming the first id that is missing.

    `ids` uint64 (n,), `sorted_ids` uint64 (m,) ascending; returns int64 (n,).
    """
    position = np.searchsorted(sorted_ids, ids).astype(np.int64)
    found = np.zeros(len(ids), dtype=bool)
    inside = position < len(sorted_ids)
    found[inside] = sorted_ids[position[inside]] == ids[inside]
    missing = ~found & (ids != 0)
    if missing.any():
        raise BadData(
            f"{int(missing.sum())} ids of {what} are not in the lookup table",
            wanted="an entry for each fragment",
            found=f"no entry for id {int(ids[missing][0])}",
            fix="the lookup table and the fragments come from different runs: run segment again",
        )
    position[~found] = -1
    return position


def _runs(labels: NDArray[Any], truth: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Start and length of each stretch of a flat array in which neither label changes."""
    if labels.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    changes = np.flatnonzero((labels[1:] != labels[:-1]) | (truth[1:] != truth[:-1])) + 1
    starts = np.concatenate([np.zeros(1, np.int64), changes.astype(np.int64)])
    return starts, np.diff(starts, append=labels.size)


def _merged(labels: UInt64s, truths: UInt64s, voxels: Int64s, unlabelled_vox: int) -> Contingency:
    """Sort rows by (label, truth) and sum equal ones."""
    order = np.lexsort((truths, labels))
    labels, truths, voxels = labels[order], truths[order], voxels[order]
    if not len(labels):
        return Contingency(labels, truths, voxels.astype(np.int64), unlabelled_vox)
    new = np.flatnonzero((labels[1:] != labels[:-1]) | (truths[1:] != truths[:-1])) + 1
    first = np.concatenate([np.zeros(1, np.int64), new.astype(np.int64)])
    return Contingency(labels[first], truths[first], np.add.reduceat(voxels, first).astype(np.int64), unlabelled_vox)
