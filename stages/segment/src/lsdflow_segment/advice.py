"""Which threshold to take: the best VOI where there is truth, else the steadiest partition.

Without truth. Partitions of rising thresholds are nested, so the variation of information between two of them is simply
the loss of entropy H (bits; each segment weighted by its voxels). Where the scores separate "same neuron" from
"other neuron" well, H hardly moves over a stretch of thresholds:

    H |*
      | *                    1. merging must have begun: at most 90 % of the fragments are left as segments;
      |  *********           2. nothing has collapsed: the largest segment holds at most half of all voxels;
      |     ^     *          3. a plateau loses at most 10 % of its entropy; of those nearly as wide as the
      |                          widest (80 %) the highest wins: only merging in excess shows as a cliff;
      |   advice   *****     4. the advice is the threshold nearest to its middle.
      +------------------ t  If 1 and 2 leave nothing, the advice is the least merged threshold there is, and says why.

With truth. One table of fragments x truth is relabelled for each threshold; the smallest VOI wins, the lowest
threshold if equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

MERGING_BEGUN = 0.9
COLLAPSED = 0.5
PLATEAU_LOSS = 0.1
NEARLY_AS_WIDE = 0.8

# A power of two, 128 or more: the length that numpy sums without halving.
_SUMMED_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class PartitionFacts:
    """A partition at one threshold: number of segments, voxels of the largest, entropy in bits (weighted by voxels)."""

    threshold: float
    segments: int
    largest_vox: int
    entropy_bits: float


@dataclass(frozen=True)
class Advice:
    """The suggested threshold, by which method ("voi" or "stability"), and why, in a sentence."""

    threshold: float
    method: str
    reason: str


def partition_facts(threshold: float, positions: NDArray[Any], sizes_vox: NDArray[np.uint64]) -> PartitionFacts:
    """Facts of one partition.

    `positions` integers (n,): the place of each fragment's segment; `sizes_vox` uint64 (n,): voxels of each fragment.
    """
    voxels = np.zeros(len(positions), np.uint64)
    return facts_of_voxels(threshold, voxels[: _add_up(positions, sizes_vox, voxels)])


def facts_of_voxels(threshold: float, voxels: NDArray[np.uint64]) -> PartitionFacts:
    """Facts of a partition whose segments have these voxels, uint64 (segments,), in the order of the segments' ids.

    Beside the voxels it holds a piece of them.
    """
    positive = voxels if voxels.all() else voxels[voxels > 0]
    entropy = max(0.0, -_sum_of_share_log_share(positive, float(positive.sum())))
    return PartitionFacts(threshold, len(voxels), int(voxels.max(initial=0)), entropy)


def _sum_of_share_log_share(voxels: NDArray[np.uint64], total: float) -> float:
    """Halved as numpy halves a sum of any length, so that the bits do not depend on how much is held at once."""
    if len(voxels) <= _SUMMED_AT_ONCE:
        share = voxels.astype(np.float64) / total
        return float(np.sum(share * np.log2(share)))
    half = len(voxels) // 2
    half -= half % 8
    return _sum_of_share_log_share(voxels[:half], total) + _sum_of_share_log_share(voxels[half:], total)


@compiled
def _add_up(positions: NDArray[Any], sizes_vox: NDArray[Any], voxels: NDArray[Any]) -> int:
    """Voxels of each segment, one after the other at the beginning of `voxels`; gives how many segments there are."""
    for node in range(len(positions)):
        voxels[positions[node]] += sizes_vox[node]
    segments = 0
    for node in range(len(positions)):
        if positions[node] == node:
            voxels[segments] = voxels[node]
            segments += 1
    return segments


def changes_to_next(facts: Sequence[PartitionFacts]) -> list[float | None]:
    """Variation of information (bits) between each partition and that of the next threshold; None for the last."""
    steps = [max(0.0, a.entropy_bits - b.entropy_bits) for a, b in itertools.pairwise(facts)]
    return [*steps, None]


def advise_by_stability(facts: Sequence[PartitionFacts], fragments: int, voxels: int) -> Advice:
    """The middle of the widest plateau; `facts` in ascending thresholds (at least one), of `fragments` and `voxels`."""
    begun = [f for f in facts if f.segments <= MERGING_BEGUN * fragments]
    usable = [f for f in begun if f.largest_vox <= COLLAPSED * voxels]
    if not begun:
        reason = f"no threshold merges much: {facts[-1].segments} of {fragments} fragments are left at the highest"
        return Advice(facts[-1].threshold, "stability", reason)
    if not usable:
        share = begun[0].largest_vox / max(voxels, 1)
        reason = f"one segment holds {share:.0%} of all voxels as soon as merging begins: look at the affinities"
        return Advice(begun[0].threshold, "stability", reason)
    first, last = _plateau(usable)
    middle = (first.threshold + last.threshold) / 2
    chosen = min(usable, key=lambda f: (round(abs(f.threshold - middle), 9), f.threshold))
    loss = first.entropy_bits - last.entropy_bits
    reason = (
        f"from {first.threshold:.4f} to {last.threshold:.4f} the partition changes by only {loss:.3f} bits of "
        f"{first.entropy_bits:.3f}, a wide plateau; this is its middle ({chosen.segments} segments)"
    )
    return Advice(chosen.threshold, "stability", reason)


def advise_by_voi(thresholds: Sequence[float], voi_split: Sequence[float], voi_merge: Sequence[float]) -> Advice:
    """The threshold with the smallest VOI (bits) against the truth."""
    total = [split + merge for split, merge in zip(voi_split, voi_merge, strict=True)]
    best = min(range(len(total)), key=lambda i: (total[i], thresholds[i]))
    reason = (
        f"smallest VOI {total[best]:.3f} = {voi_split[best]:.3f} split + {voi_merge[best]:.3f} merge against the truth"
    )
    return Advice(thresholds[best], "voi", reason)


def _plateau(facts: Sequence[PartitionFacts]) -> tuple[PartitionFacts, PartitionFacts]:
    """First and last partition of the highest stretch that keeps its entropy and is nearly as wide as the widest."""
    stretches = []
    for begin, first in enumerate(facts):
        floor = (1 - PLATEAU_LOSS) * first.entropy_bits
        stretches.append((first, [f for f in facts[begin:] if f.entropy_bits >= floor][-1]))
    widths = [last.threshold - first.threshold for first, last in stretches]
    wide = [s for s, width in zip(stretches, widths, strict=True) if width >= NEARLY_AS_WIDE * max(widths) - 1e-9]
    return wide[-1]
