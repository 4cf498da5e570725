"""Thresholds are exact decimals, wrong ones are refused; the advice is a plateau or the smallest VOI, and says why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.lut import legacy_lut_name, lut_name
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_segment.components import ThresholdSweep
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.sizes import SegmentationFacts, facts_of_roots
from lsdflow_segment.threshold_selection import (
    advise_by_network,
    advise_by_stability,
    advise_by_voi,
    changes_to_next,
    set_threshold,
    thresholds_of,
)


def graph_of_cells(within: tuple[float, float], between: tuple[float, float], seed: int = 0):
    """20 cells of 10 fragments, chained inside by scores of `within`, and to the next cell by one of `between`."""
    rng = np.random.default_rng(seed)
    ids = np.arange(1, 201, dtype=np.uint64)
    scores = rng.uniform(*within, 199)
    borders = np.arange(9, 199, 10)
    scores[borders] = rng.uniform(*between, len(borders))
    return ids, ids[:-1], ids[1:], scores.astype(np.float32)


def facts_of(graph, thresholds: list[float], sizes: np.ndarray) -> list[SegmentationFacts]:
    ids, u, v, scores = graph
    sweep = ThresholdSweep(ids, thresholds)
    sweep.add(u, v, scores)
    return [facts_of_roots(t, p, sizes) for t, p in zip(thresholds, sweep.roots(), strict=True)]


GRID = [i / 50 for i in range(51)]


@given(st.integers(0, 10_000))
def test_the_change_between_thresholds_is_the_voi_of_their_segments(seed: int) -> None:
    ids, u, v, scores = graph_of_cells((0, 1), (0, 1), seed)
    sizes = np.random.default_rng(seed).integers(1, 9, len(ids)).astype(np.uint64)
    sweep = ThresholdSweep(ids, [0.2, 0.6])
    sweep.add(u, v, scores)
    fine, coarse = (ids[p].repeat(sizes.astype(int)) for p in sweep.roots())
    change, none = changes_to_next(facts_of((ids, u, v, scores), [0.2, 0.6], sizes))
    assert none is None
    assert change == pytest.approx(score(contingency(fine, coarse)).voi, abs=1e-9)


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


def test_a_collapse_at_once_is_reported() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((0.0, 0.0), (0.0, 0.0)), GRID, sizes), 200, 20_000)
    assert "check the affinities" in advice.reason


def test_no_merge_at_all_is_reported() -> None:
    sizes = np.full(200, 100, np.uint64)
    advice = advise_by_stability(facts_of(graph_of_cells((1.0, 1.0), (1.0, 1.0)), [0.1, 0.2], sizes), 200, 20_000)
    assert "no threshold merges much" in advice.reason


def test_with_truth_the_smallest_voi_wins_and_the_lowest_threshold_of_equals() -> None:
    advice = advise_by_voi([0.1, 0.2, 0.3], [(2.0, 0.0), (0.5, 0.5), (0.25, 0.75)])
    assert (advice.threshold, advice.method) == (0.2, "voi")
    assert "1.000 = 0.500 split + 0.500 merge" in advice.reason


@pytest.mark.parametrize(("calibrated", "taken"), [(0.2, 0.2), (0.26, 0.3), (0.25, 0.2), (0.9, 0.3), (0.0, 0.1)])
def test_the_computed_threshold_nearest_to_that_of_the_network_is_taken(calibrated: float, taken: float) -> None:
    advice = advise_by_network([0.1, 0.2, 0.3], calibrated)
    assert (advice.threshold, advice.method) == (taken, "network")
    assert f"({calibrated:g})" in advice.reason


def computed(minmax: tuple[float, float], step: float, *extra: float) -> tuple[float, ...]:
    config = SegmentConfig(thresholds_minmax=minmax, thresholds_step=step, extra_thresholds=extra)
    return thresholds_of(config)


def test_a_step_of_a_hundredth_gives_a_hundred_and_one_different_names() -> None:
    thresholds = computed((0.0, 1.0), 0.01)
    assert len({lut_name("m", t) for t in thresholds}) == len(thresholds) == 101
    assert thresholds[28] == 0.28 and thresholds[29] == 0.29  # noqa: PT018
    assert lut_name("m", 0.28) != lut_name("m", 0.29)


def test_the_published_names_collide_where_those_of_lsdflow_do_not() -> None:
    assert legacy_lut_name("m", 0.28) == legacy_lut_name("m", 0.29)
    assert legacy_lut_name("m", 0.56) == legacy_lut_name("m", 0.57)


@given(st.integers(0, 10_000))
def test_every_threshold_of_four_decimals_is_exact(number: int) -> None:
    for threshold in (number / 10_000, float(f"{number / 10_000:.4f}")):
        assert computed((threshold, threshold), 0.1) == (number / 10_000,)
        assert set_threshold(SegmentConfig(thresholds_step=0.0001, threshold=threshold)) == number / 10_000


def test_both_ends_are_in_the_range_and_extra_thresholds_in_their_place() -> None:
    assert computed((0.1, 0.3), 0.1) == (0.1, 0.2, 0.3)
    assert computed((0.5, 0.5), 0.02) == (0.5,)
    assert computed((0.1, 0.25), 0.1) == (0.1, 0.2)
    assert computed((0.1, 0.2), 0.1, 0.15, 0.2) == (0.1, 0.15, 0.2)


@pytest.mark.parametrize(
    ("minmax", "step", "words"),
    [
        ((0.5, 0.2), 0.1, "goes down"),
        ((0.0, 1.0), 0.0, "positive"),
        ((0.0, 1.5), 0.1, "outside"),
        ((0.12345, 1.0), 0.1, "four decimals"),
        ((0.0, 1.0), -0.1, "outside"),
    ],
)
def test_a_wrong_range_is_refused(minmax: tuple[float, float], step: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        computed(minmax, step)


def test_a_threshold_that_is_not_computed_is_refused_with_those_that_are() -> None:
    assert set_threshold(SegmentConfig()) is None
    with pytest.raises(MissingInput) as refusal:
        set_threshold(SegmentConfig(thresholds_minmax=(0.1, 0.2), thresholds_step=0.1, threshold=0.25))
    assert "0.1000, 0.2000" in refusal.value.found
    assert refusal.value.exit_code == 66
