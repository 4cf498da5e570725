"""Sizes of segments from one pass over blocks, and the check that a written segmentation is what the table says.

Voxel counts of blocks add up, so the number of segments, the largest one and all sizes are known without ever
holding the volume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

_WAITING_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class SegmentSizes:
    """Ids uint64 (n,) ascending, none 0, voxels int64 (n,) of each, and the number of background voxels."""

    ids: UInt64s
    voxels: NDArray[np.int64]
    background_vox: int

    @property
    def largest(self) -> tuple[int, int]:
        """Id and voxels of the largest segment (the smaller id if equal); (0, 0) if there is none."""
        if not len(self.ids):
            return 0, 0
        largest = int(np.argmax(self.voxels))
        return int(self.ids[largest]), int(self.voxels[largest])

    def histogram(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Edges 1, 2, 4, ... voxels (k + 1,) and the number of segments in each half-open bin (k,)."""
        top = int(self.voxels.max(initial=1))
        edges = 2 ** np.arange(top.bit_length() + 1, dtype=np.int64)
        counts, _ = np.histogram(self.voxels, bins=edges)
        return edges, counts.astype(np.int64)


class SizeCount:
    """Adds up the voxels of each id, block by block, in the memory of the distinct ids."""

    def __init__(self) -> None:
        self._ids: list[UInt64s] = []
        self._voxels: list[NDArray[np.int64]] = []
        self._merged_rows = 0
        self._rows = 0

    def add(self, labels: NDArray[Any]) -> None:
        """Count the voxels of one block: integers of any shape, 0 = background."""
        flat = labels.reshape(-1)
        if not flat.size:
            return
        starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
        self.add_counts(flat[starts].astype(np.uint64), np.diff(starts, append=flat.size).astype(np.int64))

    def add_counts(self, ids: UInt64s, voxels: NDArray[np.int64]) -> None:
        """Add counts: ids uint64 (m,), not necessarily distinct, and their voxels int64 (m,)."""
        ids, voxels = _summed(ids, voxels)
        self._ids.append(ids)
        self._voxels.append(voxels)
        self._rows += len(ids)
        if self._rows > _WAITING_ROWS + 2 * self._merged_rows:
            self._merge()

    def sizes(self) -> SegmentSizes:
        """Everything counted so far."""
        self._merge()
        ids, voxels = self._ids[0], self._voxels[0]
        first = int(np.searchsorted(ids, np.uint64(1)))
        return SegmentSizes(ids[first:], voxels[first:], int(voxels[:first].sum()))

    def _merge(self) -> None:
        ids = np.concatenate([np.zeros(0, np.uint64), *self._ids])
        self._ids = []
        voxels = np.concatenate([np.zeros(0, np.int64), *self._voxels])
        self._voxels = []
        ids, voxels = _summed(ids, voxels)
        self._ids, self._voxels = [ids], [voxels]
        self._merged_rows = self._rows = len(ids)


def _summed(ids: UInt64s, voxels: NDArray[np.int64]) -> tuple[UInt64s, NDArray[np.int64]]:
    """Each id once, ascending, with its voxels added up."""
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, voxels
    order = np.argsort(ids, kind="stable")
    ids, voxels = ids[order], voxels[order]
    del order
    first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return ids[first], np.add.reduceat(voxels, first)
