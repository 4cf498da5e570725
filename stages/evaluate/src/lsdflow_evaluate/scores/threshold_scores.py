"""Scores of every threshold from two small things: one table of fragments x truth, and the fragment of every node."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.lut import Lut
from lsdflow_evaluate.report.data import Score
from lsdflow_evaluate.scores.run_length import RunLengths, Skeletons, run_lengths
from lsdflow_metrics.contingency import Contingency, positions_in
from lsdflow_metrics.scores import PartitionScores, ZeroPolicy, score


@dataclass(frozen=True)
class ThresholdScore:
    """What a threshold of a merge function is worth: partition scores, and run lengths where there are skeletons."""

    merge_function: str
    threshold: float
    number_of_segments: int
    partition: PartitionScores
    runs: RunLengths | None

    def as_dict(self) -> dict[str, Any]:
        """All values, flat, as they stand in scores.json."""
        named = {"merge_function": self.merge_function, "threshold": self.threshold}
        counts = {"number_of_segments": self.number_of_segments}
        return {**named, **counts, **asdict(self.partition), **(asdict(self.runs) if self.runs else {})}

    def as_row(self, chosen: bool) -> Score:
        """The row of the report."""
        part, runs = self.partition, self.runs
        return Score(
            merge_function=self.merge_function,
            threshold=self.threshold,
            chosen=chosen,
            voi_split=part.voi_split,
            voi_merge=part.voi_merge,
            voi=part.voi,
            rand_split=part.rand_split,
            rand_merge=part.rand_merge,
            rand=part.rand,
            adapted_rand_error=part.adapted_rand_error,
            nvi_split=part.nvi_split,
            nvi_merge=part.nvi_merge,
            number_of_segments=self.number_of_segments,
            expected_run_length_nm=runs.expected_run_length_nm if runs else None,
            max_erl_nm=runs.max_erl_nm if runs else None,
            normalized_erl=runs.normalized_erl if runs else None,
            split_edges=runs.split_edges if runs else None,
            merged_edges=runs.merged_edges if runs else None,
        )


def threshold_score(
    named: tuple[str, float, int], lut: Lut, table: Contingency, zeros: ZeroPolicy, runs: RunLengths | None
) -> ThresholdScore:
    """Score one lookup table; `named` = merge function, threshold, number of segments of the whole volume."""
    merge_function, threshold, segments = named
    partition = score(table.relabel(lut.fragments, lut.segments), zeros)
    return ThresholdScore(merge_function, threshold, segments, partition, runs)


def runs_of(skeletons: Skeletons, fragments: NDArray[np.uint64], lut: Lut, merge_min_nodes: int) -> RunLengths:
    """Run lengths of one lookup table; `fragments` uint64 (n,): the fragment that each node lies in, 0 = none."""
    place = positions_in(fragments, lut.fragments, "the skeleton nodes")
    segments = np.where(place >= 0, lut.segments[np.maximum(place, 0)], np.uint64(0))
    return run_lengths(skeletons, segments, merge_min_nodes)


def best_of(scores: list[ThresholdScore], merge_function: str) -> float:
    """Threshold of the smallest VOI among one merge function's scores; the lowest if equal."""
    own = [s for s in scores if s.merge_function == merge_function]
    if not own:
        raise BadData(f"no scores of merge function {merge_function}")
    return min(own, key=lambda s: (s.partition.voi, s.threshold)).threshold
