"""Threshold advice: entropy differences are VOI of nested partitions; plateaus and minima are found and explained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_segment.advice import (
    PartitionFacts,
    advise_by_stability,
    advise_by_voi,
    changes_to_next,
    partition_facts,
)
from lsdflow_segment.components import ThresholdSweep


def graph_of_cells(within: tuple[float, float], between: tuple[float, float], seed: int = 0):
    """20 cells of 10 fragments, chained inside by scores of `within`, and to the next cell by one of `between`."""
    rng = np.random.default_rng(seed)
    ids = np.arange(1, 201, dtype=np.uint64)
    scores = rng.uniform(*within, 199)
    borders = np.arange(9, 199, 10)
    scores[borders] = rng.uniform(*between, len(borders))
    return ids, ids[:-1], ids[1:], scores.astype(np.float32)


def facts_of(graph, thresholds: list[float], sizes: np.ndarray) -> list[PartitionFacts]:
    ids, u, v, scores = graph
    sweep = ThresholdSweep(ids, thresholds)
    sweep.add(u, v, scores)
    return [partition_facts(t, p, sizes) for t, p in zip(thresholds, sweep.partitions(), strict=True)]


GRID = [i / 50 for i in range(51)]


@given(st.integers(0, 10_000))
def test_the_change_between_thresholds_is_the_voi_of_their_partitions(seed: int) -> None:
    ids, u, v, scores = graph_of_cells((0, 1), (0, 1), seed)
    sizes = np.random.default_rng(seed).integers(1, 9, len(ids)).astype(np.uint64)
    sweep = ThresholdSweep(ids, [0.2, 0.6])
    sweep.add(u, v, scores)
    fine, coarse = (ids[p].repeat(sizes.astype(int)) for p in sweep.partitions())
    change, none = changes_to_next(facts_of((ids, u, v, scores), [0.2, 0.6], sizes))
    assert none is None
    assert change == pytest.approx(score(contingency(fine, coarse)).voi, abs=1e-9)


def test_facts_count_segments_and_the_largest() -> None:
    facts = partition_facts(0.5, np.array([0, 0, 2, 2, 2]), np.array([1, 2, 3, 4, 5], np.uint64))
    assert (facts.segments, facts.largest_vox) == (2, 12)


@pytest.mark.parametrize("seed", range(5))
def test_the_plateau_between_inner_and_outer_scores_is_found(seed: int) -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((0.1, 0.3), (0.7, 0.9), seed), GRID, sizes), 200, 20_000)
    assert 0.4 < advice.threshold < 0.6
    assert advice.method == "stability"
    assert "plateau" in advice.reason and "20 segments" in advice.reason  # noqa: PT018


def test_the_stretch_before_any_merge_is_no_plateau() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((0.6, 0.65), (0.9, 0.95)), GRID, sizes), 200, 20_000)
    assert 0.65 < advice.threshold < 0.9


def test_the_stretch_after_the_collapse_is_no_plateau() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((0.0, 0.02), (0.1, 0.12)), GRID, sizes), 200, 20_000)
    assert advice.threshold < 0.1


def test_a_collapse_at_once_is_said() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((0.0, 0.0), (0.0, 0.0)), GRID, sizes), 200, 20_000)
    assert "look at the affinities" in advice.reason


def test_no_merge_at_all_is_said() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((1.0, 1.0), (1.0, 1.0)), [0.1, 0.2], sizes), 200, 20_000)
    assert "no threshold merges much" in advice.reason


def test_with_truth_the_smallest_voi_wins_and_the_lowest_threshold_of_equals() -> None:
    advice = advise_by_voi([0.1, 0.2, 0.3], [2.0, 0.5, 0.25], [0.0, 0.5, 0.75])
    assert (advice.threshold, advice.method) == (0.2, "voi")
    assert "1.000 = 0.500 split + 0.500 merge" in advice.reason
