"""Which thresholds are computed, and which one becomes the segmentation: the one that was set, or the advice.

Thresholds are exact decimals: whole numbers of 1/10000. (The field names its tables int(threshold * 100). In binary
floating point 0.29 * 100 is 28.999999999999996, so the table of 0.29 was written over that of 0.28.)

Advice with truth. One table of fragments x truth is relabelled for each threshold. The threshold with the smallest VOI
wins, the lowest one if equal.

Advice of the network. The bundle of a network may say which threshold suits its affinities, chosen where it was not
trained; the computed threshold nearest to it is taken.

Advice without either. The segments of a lower threshold lie inside those of a higher one, so the variation of
information between the two is simply the loss of entropy H (bits; each segment weighted by its voxels). Where the
scores separate "same neuron" from "other neuron" well, H hardly changes over a stretch of thresholds:

    H |*
      | *                    1. merging must have begun: at most 90 % of the fragments are left as segments;
      |  *********           2. nothing has collapsed: the largest segment has at most half of all voxels;
      |     ^     *          3. a plateau loses at most 10 % of its entropy. Of those at least 80 % as wide as the
      |                          widest, the highest wins: only excessive merging shows as a cliff;
      |   advice   *****     4. the advice is the threshold nearest to its middle.
      +------------------ t  If 1 and 2 leave nothing, the advice is the least merged threshold, and says why.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.geometry import Box
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.blocks import pieces
from lsdflow_runtime.io.target import Truth
from lsdflow_runtime.io.volumes import Volume
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import LutSlice, SegmentGraph
from lsdflow_segment.sizes import SegmentationFacts, UInt64s

LOG = logging.getLogger("lsdflow.segment")

MERGING_BEGUN = 0.9
COLLAPSED = 0.5
PLATEAU_LOSS = 0.1
NEARLY_AS_WIDE = 0.8

_PER_UNIT = 10_000


@dataclass(frozen=True)
class Advice:
    """The suggested threshold, by which method ("voi", "network" or "stability"), and why, in a sentence."""

    threshold: float
    method: str
    reason: str


@dataclass(frozen=True)
class ThresholdChoice:
    """What is known of all thresholds of a merge function, and the chosen one.

    `voi`: (split, merge) in bits for each threshold; empty without truth.
    """

    merge_function: str
    facts: tuple[SegmentationFacts, ...]
    voi: tuple[tuple[float, float], ...]
    advice: Advice
    chosen: float

    @property
    def thresholds(self) -> tuple[float, ...]:
        """All thresholds, ascending."""
        return tuple(f.threshold for f in self.facts)

    @property
    def lowest_voi(self) -> dict[str, float]:
        """With truth: the threshold with the smallest VOI (bits), and that VOI."""
        return {"threshold": self.advice.threshold, "voi": min(map(sum, self.voi))}


def thresholds_of(config: SegmentConfig) -> tuple[float, ...]:
    """All thresholds that get a table, ascending and distinct: from min to max, both included if the step meets them,
    and the extra ones.

    Raises ConfigError if max < min, the step is not positive, or a value has more than four decimals or is not in
    [0, 1].
    """
    first, last = (_ten_thousandths(t, "segment.thresholds_minmax") for t in config.thresholds_minmax)
    step = _ten_thousandths(config.thresholds_step, "segment.thresholds_step")
    if last < first:
        found = str(list(config.thresholds_minmax))
        raise ConfigError("segment.thresholds_minmax goes down", wanted="[smaller, larger]", found=found)
    if step == 0:
        found = str(config.thresholds_step)
        raise ConfigError("segment.thresholds_step must be positive", wanted="0.0001 or more", found=found)
    extra = {_ten_thousandths(t, "segment.extra_thresholds") for t in config.extra_thresholds}
    return tuple(number / _PER_UNIT for number in sorted({*range(first, last + 1, step), *extra}))


def set_threshold(config: SegmentConfig) -> float | None:
    """The threshold that is set for the segmentation; None if it is to be chosen.

    Raises MissingInput, with a list of those that are computed, if it is none of them.
    """
    if config.threshold == "auto":
        return None
    computed = thresholds_of(config)
    exact = _ten_thousandths(config.threshold, "segment.threshold") / _PER_UNIT
    if exact not in computed:
        raise MissingInput(
            f"no table for threshold {exact:.4f} of {config.merge_function or 'the merge function'}",
            wanted=f"threshold {exact:.4f}",
            found=", ".join(f"{t:.4f}" for t in computed),
            fix="choose one of these, or widen thresholds_minmax / thresholds_step and run segment again",
        )
    return exact


def choose_threshold(
    graph: SegmentGraph,
    merge_function: str,
    wanted: float | None,
    truth: Contingency | None,
    calibrated: float | None = None,
) -> ThresholdChoice:
    """Facts of every threshold of the graph, the advice, and the threshold: `wanted`, or else the advice.

    `truth`: fragments x truth, if the advice is to come from it; `calibrated`: the threshold of the network's bundle.
    """
    facts = graph.facts()
    voi = () if truth is None else voi_of_thresholds(truth, graph)
    if voi:
        advice = advise_by_voi([f.threshold for f in facts], voi)
    elif calibrated is not None:
        advice = advise_by_network([f.threshold for f in facts], calibrated)
    else:
        advice = advise_by_stability(facts, graph.nodes, graph.voxels)
    return ThresholdChoice(merge_function, facts, voi, advice, advice.threshold if wanted is None else wanted)


def why(choice: ThresholdChoice, wanted: float | None) -> str:
    """The chosen threshold and the advice, in one line for the log."""
    advice = choice.advice
    if wanted is None:
        return f"threshold {choice.chosen:.4f} by {advice.method}: {advice.reason}"
    return f"threshold {choice.chosen:.4f} as set (advice by {advice.method}: {advice.threshold:.4f}, {advice.reason})"


def count_against_truth(fragments: Volume, truth: Truth, box: Box) -> Contingency | None:
    """The table of fragments x truth in `box`, which both volumes cover, counted chunk by chunk.

    None, with a warning, if the truth has no labels there.
    """
    total = ContingencySum()
    for chunk in pieces(box, fragments.chunk_shape_vox):
        total.add(contingency(fragments.read(chunk), truth.read(chunk)))
    table = total.table()
    if table.total_vox == 0:
        LOG.warning("the truth has no labels in %s: advice by stability", box)
        return None
    return table


def voi_of_thresholds(truth: Contingency, graph: SegmentGraph) -> tuple[tuple[float, float], ...]:
    """(VOI split, VOI merge) in bits of each threshold of the graph; segmentation 0 counts as one label.

    `truth`: fragments x truth.
    """
    scores = []
    labels = np.unique(truth.labels)
    for lut in graph.luts():
        found = score(truth.relabel(*_entries(lut, labels)), zeros="label")
        scores.append((found.voi_split, found.voi_merge))
    return tuple(scores)


def advise_by_voi(thresholds: Sequence[float], voi: Sequence[tuple[float, float]]) -> Advice:
    """The threshold with the smallest VOI (split + merge, bits) against the truth."""
    best = min(range(len(voi)), key=lambda i: (sum(voi[i]), thresholds[i]))
    split, merge = voi[best]
    reason = f"smallest VOI {split + merge:.3f} = {split:.3f} split + {merge:.3f} merge against the truth"
    return Advice(thresholds[best], "voi", reason)


def advise_by_network(thresholds: Sequence[float], calibrated: float) -> Advice:
    """The computed threshold nearest to the one that was calibrated with the network, the lower one if two are."""
    nearest = min(thresholds, key=lambda t: (round(abs(t - calibrated), 9), t))
    return Advice(nearest, "network", f"calibrated with the network ({calibrated:g}) where it was not trained")


def advise_by_stability(facts: Sequence[SegmentationFacts], fragments: int, voxels: int) -> Advice:
    """The middle of the widest plateau; `facts` in ascending thresholds (at least one), of `fragments` and `voxels`."""
    begun = [f for f in facts if f.segments <= MERGING_BEGUN * fragments]
    usable = [f for f in begun if f.largest_vox <= COLLAPSED * voxels]
    if not begun:
        reason = f"no threshold merges much: {facts[-1].segments} of {fragments} fragments are left at the highest"
        return Advice(facts[-1].threshold, "stability", reason)
    if not usable:
        share = begun[0].largest_vox / max(voxels, 1)
        reason = f"one segment holds {share:.0%} of all voxels as soon as merging begins: check the affinities"
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


def changes_to_next(facts: Sequence[SegmentationFacts]) -> list[float | None]:
    """Variation of information (bits) between the segments of each threshold and the next one; None for the last."""
    steps = [max(0.0, a.entropy_bits - b.entropy_bits) for a, b in itertools.pairwise(facts)]
    return [*steps, None]


def _plateau(facts: Sequence[SegmentationFacts]) -> tuple[SegmentationFacts, SegmentationFacts]:
    """First and last of the highest stretch that keeps its entropy and is nearly as wide as the widest."""
    stretches = []
    for begin, first in enumerate(facts):
        floor = (1 - PLATEAU_LOSS) * first.entropy_bits
        stretches.append((first, [f for f in facts[begin:] if f.entropy_bits >= floor][-1]))
    widths = [last.threshold - first.threshold for first, last in stretches]
    wide = [s for s, width in zip(stretches, widths, strict=True) if width >= NEARLY_AS_WIDE * max(widths) - 1e-9]
    return wide[-1]


def _entries(lut: Sequence[LutSlice], labels: UInt64s) -> tuple[UInt64s, UInt64s]:
    """The entries of a table, fragments and segments, for those of `labels` (ascending) that it has."""
    fragments, segments = [labels[:0]], [labels[:0]]
    for lut_slice in lut:
        ids = lut_slice.fragments
        first, end = np.searchsorted(labels, ids[0]), np.searchsorted(labels, ids[-1], "right")
        if first < end:
            position = np.searchsorted(ids, labels[first:end])
            position = position[ids[position] == labels[first:end]]
            fragments.append(ids[position])
            segments.append(lut_slice.segments[position])
    return np.concatenate(fragments), np.concatenate(segments)


def _ten_thousandths(value: float, field: str) -> int:
    """A threshold in whole ten-thousandths. ConfigError naming `field` if it has more decimals or is not in [0, 1]."""
    try:
        exact = Decimal(str(value)) * _PER_UNIT
        whole = int(exact)
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise ConfigError(f"{field} is not a number", found=repr(value)) from error
    if exact != whole:
        raise ConfigError(f"{field} has more than four decimals", wanted="a multiple of 0.0001", found=str(value))
    if not 0 <= whole <= _PER_UNIT:
        raise ConfigError(f"{field} lies outside the scores", wanted="0 to 1 (score = 1 - affinity)", found=str(value))
    return whole
