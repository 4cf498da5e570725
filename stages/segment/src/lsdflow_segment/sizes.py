"""Sizes in voxels: counted over blocks, compared with those of the graph, and what they say of a segmentation.

Voxel counts of blocks add up, so the number of segments, the largest one and all sizes are known without holding the
volume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_runtime.compiled import compiled

UInt64s = NDArray[np.uint64]

_WAITING_ROWS = 1 << 20
# A power of two, 128 or more: the length that numpy sums without halving.
_SUMMED_AT_ONCE = 1 << 18


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

    def summary(self) -> dict[str, Any]:
        """Facts for the manifest: number of segments, the largest, background, and the size histogram."""
        edges, segments = self.histogram()
        largest, largest_vox = self.largest
        return {
            "segments": len(self.ids),
            "largest_segment": largest,
            "largest_segment_vox": largest_vox,
            "background_vox": self.background_vox,
            "size_edges_vox": edges.tolist(),
            "size_segments": segments.tolist(),
        }


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


@dataclass(frozen=True)
class SegmentationFacts:
    """Facts of the segments of one threshold: how many, voxels of the largest, entropy in bits (weighted by voxels).

    small_segments, small_vox: those that `min_segment_vox` makes background, and their voxels; the other facts count
    them, so that the advice does not depend on it.
    """

    threshold: float
    segments: int
    largest_vox: int
    entropy_bits: float
    small_segments: int = 0
    small_vox: int = 0


def facts_of_roots(
    threshold: float, roots: NDArray[Any], sizes_vox: UInt64s, min_segment_vox: int = 0
) -> SegmentationFacts:
    """Facts of a segmentation in memory.

    `roots` integers (n,): position of the smallest fragment of each fragment's segment. `sizes_vox` uint64 (n,): voxels
    of each fragment.
    """
    voxels = np.zeros(len(roots), np.uint64)
    return facts_of_voxels(threshold, voxels[: _add_up(roots, sizes_vox, voxels)], min_segment_vox)


def facts_of_voxels(threshold: float, voxels: UInt64s, min_segment_vox: int = 0) -> SegmentationFacts:
    """Facts of a segmentation whose segments have these voxels, uint64 (segments,), in the order of the segments' ids.

    `voxels` may be a memory-mapped file: only a part of it is copied at a time.
    """
    positive = voxels if voxels.all() else voxels[voxels > 0]
    entropy = max(0.0, -_sum_of_share_log_share(positive, float(positive.sum())))
    small = voxels[voxels < min_segment_vox]
    counts = {"small_segments": len(small), "small_vox": int(small.sum())}
    return SegmentationFacts(threshold, len(voxels), int(voxels.max(initial=0)), entropy, **counts)


def require_same_sizes(found: SegmentSizes, wanted: SegmentSizes) -> None:
    """Raise BadData naming the first segment whose voxels in the volume (`found`) and the graph (`wanted`) differ."""
    if np.array_equal(found.ids, wanted.ids) and np.array_equal(found.voxels, wanted.voxels):
        return
    segment, voxels, expected = _first_difference(found, wanted)
    raise BadData(
        "segment sizes in the volume and in the graph differ",
        wanted=f"{len(wanted.ids)} segments, segment {segment} with {expected} voxels",
        found=f"{len(found.ids)} segments, segment {segment} with {voxels} voxels",
        fix="fragments and graph come from different runs: run watershed again",
    )


def _first_difference(found: SegmentSizes, wanted: SegmentSizes) -> tuple[int, int, int]:
    ids: UInt64s = np.union1d(found.ids, wanted.ids)
    voxels = [np.zeros(len(ids), np.int64) for _ in range(2)]
    for column, sizes in zip(voxels, (found, wanted), strict=True):
        column[np.searchsorted(ids, sizes.ids)] = sizes.voxels
    first = int(np.flatnonzero(voxels[0] != voxels[1])[0])
    return int(ids[first]), int(voxels[0][first]), int(voxels[1][first])


def _summed(ids: UInt64s, voxels: NDArray[np.int64]) -> tuple[UInt64s, NDArray[np.int64]]:
    """Each id once, ascending, with its voxels added up."""
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, voxels
    order = np.argsort(ids, kind="stable")
    ids, voxels = ids[order], voxels[order]
    del order
    first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return ids[first], np.add.reduceat(voxels, first)


def _sum_of_share_log_share(voxels: UInt64s, total: float) -> float:
    """Halved as numpy halves a sum of any length, so that the bits do not depend on how much is held at once."""
    if len(voxels) <= _SUMMED_AT_ONCE:
        share = voxels.astype(np.float64) / total
        return float(np.sum(share * np.log2(share)))
    half = len(voxels) // 2
    half -= half % 8
    return _sum_of_share_log_share(voxels[:half], total) + _sum_of_share_log_share(voxels[half:], total)


@compiled
def _add_up(roots: NDArray[Any], sizes_vox: NDArray[Any], voxels: NDArray[Any]) -> int:
    """Voxels of each segment, one after the other at the beginning of `voxels`; returns the number of segments."""
    for node in range(len(roots)):
        voxels[roots[node]] += sizes_vox[node]
    segments = 0
    for node in range(len(roots)):
        if roots[node] == node:
            voxels[segments] = voxels[node]
            segments += 1
    return segments
