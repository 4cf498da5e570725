"""The place where a small change of the threshold changes most: to look at, and to label, where there is no truth.

fragments of a box, lookup tables of neighbouring thresholds --> two segmentations of the same voxels
the worst split or merge of one as seen by the other (ranking) --> the voxel where its two parts touch (contacts)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_contract.lut import Lut
from lsdflow_evaluate.errors.contacts import contact_of, most_central, surface
from lsdflow_evaluate.errors.ranking import SplitOrMerge, worst_errors
from lsdflow_evaluate.scores.counting import vox3
from lsdflow_metrics.contingency import Contingency, positions_in


@dataclass(frozen=True)
class DoubtfulPlace:
    """A voxel between two parts that are one segment at one threshold and two at the other.

    joined: they are one segment now, and two at `other_threshold`. parts: their ids where they are two. bits: what the
    change costs in the fragments that were searched.
    """

    voxel: Vox3
    joined: bool
    parts: tuple[int, int]
    other_threshold: float
    bits: float = 0.0


def doubtful_place(
    fragments: NDArray[np.uint64], chosen: Lut, others: Iterable[tuple[float, Lut]], voxel_size_nm: Nm3
) -> DoubtfulPlace | None:
    """The place in `fragments` (z, y, x) for the first of `others` (threshold, table) that differs there; else None.

    Raises BadData for fragments that are not in a table.
    """
    ids, place, voxels = np.unique(fragments, return_inverse=True, return_counts=True)
    place = place.reshape(fragments.shape)
    now = _segments(chosen, ids)
    for threshold, lut in others:
        then = _segments(lut, ids)
        known = (then > 0) & (now > 0)  # 0: too small a segment (segment.min_segment_vox)
        table = Contingency(ids[known], then[known], voxels[known].astype(np.int64))
        errors = worst_errors(table.relabel(chosen.fragments, chosen.segments), 1, "label")
        if errors:
            worst = max(errors, key=lambda error: error.bits)
            return _place_of(worst, now[place], then[place], threshold, voxel_size_nm)
    return None


def _segments(lut: Lut, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The segment of each fragment; 0 of 0."""
    position = positions_in(ids, lut.fragments, "the box")
    return np.where(position < 0, np.uint64(0), lut.segments[position])


def _place_of(
    worst: SplitOrMerge, now: NDArray[np.uint64], then: NDArray[np.uint64], threshold: float, voxel_size_nm: Nm3
) -> DoubtfulPlace | None:
    first, second = (surface((now == p.segment) & (then == p.truth)) for p in (worst.first, worst.second))
    touch = contact_of(first, second, voxel_size_nm)
    if touch is None:
        return None
    voxel = vox3(most_central(touch.voxels, touch.voxels.mean(axis=0), voxel_size_nm)[1])
    joined = worst.kind == "merge"
    parts = [p.truth if joined else p.segment for p in (worst.first, worst.second)]
    return DoubtfulPlace(voxel, joined, (parts[0], parts[1]), threshold, worst.bits)
