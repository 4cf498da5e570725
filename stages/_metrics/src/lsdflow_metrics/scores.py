"""The usual scores from one contingency table: VOI, NVI, NID, Rand, adapted Rand error.

With counts p_ij of (segment i, truth j), marginals s_i and t_j, and n = sum of p_ij:

1. VOI (bits): split = H(S|T) = -sum p_ij/n log2(p_ij / t_j), merge = H(T|S) = -sum p_ij/n log2(p_ij / s_i).
2. Rand counts pairs of two different voxels: together in both P = sum p_ij (p_ij - 1), in the truth sum t_j (t_j - 1),
   in the segmentation sum s_i (s_i - 1). split = P / truth pairs, merge = P / segmentation pairs, and the adapted Rand
   error is 1 - their harmonic mean.

Voxels whose truth is 0 are never in the table. Voxels whose segmentation is 0 are treated by `zeros`: see the README.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, UsageError
from lsdflow_metrics.contingency import Contingency

Floats = NDArray[np.float64]

ZeroPolicy = Literal["label", "ignore", "singletons"]
ZERO_POLICIES: tuple[ZeroPolicy, ...] = ("label", "ignore", "singletons")


@dataclass(frozen=True)
class PartitionScores:
    """Agreement of a segmentation with the truth; definitions and ranges in the README.

    `voi*` in bits; `nvi*`, `nid`, `rand*`, `adapted_rand_error` in [0, 1]. `voxels` were compared, `segments` and
    `objects` are the numbers of labels among them, `zero_fraction` is the share of labelled voxels that the
    segmentation left at 0 (before `zeros` was applied), `unlabelled_vox` were left out because their truth is 0.
    """

    voi_split: float
    voi_merge: float
    voi: float
    nvi_split: float
    nvi_merge: float
    nid: float
    rand_split: float
    rand_merge: float
    rand: float
    adapted_rand_error: float
    voxels: int
    segments: int
    objects: int
    zero_fraction: float
    unlabelled_vox: int
    zeros: ZeroPolicy


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counts as floats, one per pair, segment and truth object; objects contain `singletons` more one-voxel pairs."""

    pairs: Floats
    segment_of_pair: Floats
    truth_of_pair: Floats
    segments: Floats
    truths: Floats
    singleton_truths: Floats
    singletons: Floats


def score(table: Contingency, zeros: ZeroPolicy = "label") -> PartitionScores:
    """Score a segmentation against the truth.

    `zeros` defines voxels with segmentation 0: one more segment ("label"), left out ("ignore") or each a separate
    segment ("singletons"). Raises BadData if no voxel remains to compare, UsageError for another `zeros`.
    """
    if zeros not in ZERO_POLICIES:
        raise UsageError("unknown policy for segmentation 0", wanted=", ".join(ZERO_POLICIES), found=str(zeros))
    counts = _counts(table, zeros)
    voxels = float(counts.pairs.sum() + counts.singletons.sum())
    if voxels == 0:
        raise BadData(
            "nothing to compare: no voxel has both a truth label and a segment",
            wanted="truth labels > 0 inside the region",
            found=f"{table.unlabelled_vox} voxels, all unlabelled or ignored",
        )
    at_zero = int(table.voxels[table.labels == 0].sum())
    return PartitionScores(
        **_information(counts, voxels),
        **_rand(counts, voxels),
        voxels=int(voxels),
        segments=len(counts.segments) + int(counts.singletons.sum()),
        objects=len(counts.truths),
        zero_fraction=at_zero / table.total_vox,
        unlabelled_vox=table.unlabelled_vox,
        zeros=zeros,
    )


def _counts(table: Contingency, zeros: ZeroPolicy) -> _Counts:
    """Marginal counts, with the rows of segmentation 0 kept, dropped or counted as singletons."""
    apart = (table.labels == 0) & (zeros != "label")
    kept = ~apart
    pairs = table.voxels[kept].astype(np.float64)
    single = table.voxels[apart].astype(np.float64) if zeros == "singletons" else np.zeros(0)
    single_truths = table.truths[apart] if zeros == "singletons" else np.zeros(0, np.uint64)
    _, segment = np.unique(table.labels[kept], return_inverse=True)
    _, truth = np.unique(np.concatenate([table.truths[kept], single_truths]), return_inverse=True)
    segments = np.bincount(segment, weights=pairs).astype(np.float64)
    truths = np.bincount(truth, weights=np.concatenate([pairs, single])).astype(np.float64)
    return _Counts(
        pairs=pairs,
        segment_of_pair=segments[segment],
        truth_of_pair=truths[truth[: len(pairs)]],
        segments=segments,
        truths=truths,
        singleton_truths=truths[truth[len(pairs) :]],
        singletons=single,
    )


def _information(counts: _Counts, voxels: float) -> dict[str, float]:
    """VOI, NVI and NID. A singleton adds its own -1/n log2(1 / t_j) to the split and nothing to the merge."""
    split = -float(np.sum(counts.pairs * np.log2(counts.pairs / counts.truth_of_pair)))
    split += float(np.sum(counts.singletons * np.log2(counts.singleton_truths)))
    merge = -float(np.sum(counts.pairs * np.log2(counts.pairs / counts.segment_of_pair)))
    entropy_truth = -float(np.sum(counts.truths * np.log2(counts.truths / voxels)))
    split, merge, entropy_truth = (max(0.0, value / voxels) for value in (split, merge, entropy_truth))
    joint = entropy_truth + split
    entropy_segments = joint - merge
    mutual = entropy_truth - merge
    larger = max(entropy_segments, entropy_truth)
    return {
        "voi_split": split,
        "voi_merge": merge,
        "voi": split + merge,
        "nvi_split": split / joint if joint > 0 else 0.0,
        "nvi_merge": merge / joint if joint > 0 else 0.0,
        "nid": min(1.0, max(0.0, 1.0 - mutual / larger)) if larger > 0 else 0.0,
    }


def _rand(counts: _Counts, voxels: float) -> dict[str, float]:
    """Rand scores over ordered pairs of different voxels; a singleton is in no pair of the segmentation."""
    both, in_truth, in_segments = (_pairs(c) for c in (counts.pairs, counts.truths, counts.segments))
    everything = voxels * (voxels - 1.0)
    split = both / in_truth if in_truth > 0 else 1.0
    merge = both / in_segments if in_segments > 0 else 1.0
    together = in_truth + in_segments
    return {
        "rand_split": split,
        "rand_merge": merge,
        "rand": 1.0 - (together - 2.0 * both) / everything if everything > 0 else 1.0,
        "adapted_rand_error": 1.0 - 2.0 * both / together if together > 0 else 0.0,
    }


def _pairs(counts: Floats) -> float:
    return float(np.sum(counts * (counts - 1.0)))
