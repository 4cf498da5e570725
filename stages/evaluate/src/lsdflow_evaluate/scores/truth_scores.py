"""Scores of every threshold in every region, from two small things: the counted table of fragments x truth, and the
fragment of every skeleton node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.lut import KnownLut, Lut, read_lut
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.scores.counting import NAMED, ROI, THRESHOLD_ROI, Region
from lsdflow_evaluate.scores.run_length import RunLengths, Skeletons, run_lengths
from lsdflow_metrics.contingency import Contingency, positions_in
from lsdflow_metrics.scores import PartitionScores, score

# The skeletons inside a region, and the fragment of each of their nodes.
Nodes = tuple[Skeletons, NDArray[np.uint64]]


@dataclass(frozen=True)
class ThresholdScore:
    """A threshold of a merge function: partition scores, and run lengths where there are skeletons."""

    merge_function: str
    threshold: float
    number_of_segments: int
    partition: PartitionScores
    runs: RunLengths | None

    def as_dict(self) -> dict[str, Any]:
        """All values, flat, as in scores.json."""
        named = {"merge_function": self.merge_function, "threshold": self.threshold}
        counts = {"number_of_segments": self.number_of_segments}
        return {**named, **counts, **asdict(self.partition), **(asdict(self.runs) if self.runs else {})}


@dataclass(frozen=True)
class RegionScores:
    """The scores of all thresholds in one region, and its table of fragments x truth."""

    region: Region
    scores: tuple[ThresholdScore, ...]
    table: Contingency

    def at(self, chosen: tuple[str, float]) -> ThresholdScore | None:
        """The score of a merge function at a threshold."""
        return next((s for s in self.scores if (s.merge_function, s.threshold) == chosen), None)


@dataclass(frozen=True)
class TruthScores:
    """Scores of all thresholds by region; `chosen` = (merge function, threshold); settings record what was done."""

    regions: dict[str, RegionScores]
    chosen: tuple[str, float]
    settings: dict[str, str]

    @property
    def chosen_score(self) -> ThresholdScore | None:
        """The score of the chosen threshold in the region that the report is about."""
        return self.regions[ROI].at(self.chosen)


def score_against_truth(
    config: EvaluateConfig,
    luts: Sequence[KnownLut],
    segmented: tuple[str, float],
    regions: Mapping[str, Region],
    tables: Mapping[str, Contingency],
    nodes: Mapping[str, Nodes],
    merge_min_nodes: int,
    skeletons: str,
) -> TruthScores:
    """Score every lookup table in every region, and choose the threshold.

    segmented: merge function and threshold of the segmentation; tables: the counted fragments x truth of each region;
    nodes: by region, where there are skeletons; skeletons: which they are, for the settings in scores.json.
    """
    scores: dict[str, list[ThresholdScore]] = {name: [] for name in regions}
    for known in luts:
        lut = read_lut(known.path)
        for name, table in tables.items():
            runs = runs_of(*nodes[name], lut, merge_min_nodes) if name in nodes else None
            try:
                partition = score(table.relabel(lut.fragments, lut.segments), config.zeros)
            except BadData as error:
                error.where = error.where or f"evaluate.{name.replace(NAMED, 'regions.')}"
                raise
            segments = int(known.facts["segments"])
            scores[name].append(ThresholdScore(known.merge_function, known.threshold, segments, partition, runs))
    settings = {
        "segmentation 0": config.zeros,
        "region": str(regions[ROI].box),
        "skeletons": skeletons,
        "merge needs nodes": str(merge_min_nodes),
    }
    chosen = segmented
    if THRESHOLD_ROI in regions:
        chosen = (segmented[0], best_of(scores[THRESHOLD_ROI], segmented[0]))
        settings["threshold chosen on"] = str(regions[THRESHOLD_ROI].box)
    found = {name: RegionScores(region, tuple(scores[name]), tables[name]) for name, region in regions.items()}
    return TruthScores(found, chosen, settings)


def runs_of(skeletons: Skeletons, fragments: NDArray[np.uint64], lut: Lut, merge_min_nodes: int) -> RunLengths:
    """Run lengths of one lookup table; `fragments` uint64 (n,): the fragment of each node, 0 = none."""
    place = positions_in(fragments, lut.fragments, "the skeleton nodes")
    segments = np.where(place >= 0, lut.segments[np.maximum(place, 0)], np.uint64(0))
    return run_lengths(skeletons, segments, merge_min_nodes)


def best_of(scores: list[ThresholdScore], merge_function: str) -> float:
    """Threshold of the smallest VOI among one merge function's scores; the lowest if equal."""
    own = [s for s in scores if s.merge_function == merge_function]
    if not own:
        raise BadData(f"no scores of merge function {merge_function}")
    return min(own, key=lambda s: (s.partition.voi, s.threshold)).threshold
