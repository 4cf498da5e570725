"""Findings in words: the larger error, LSD errors, splits and merges, durations."""

from __future__ import annotations

from typing import Any

import pytest

from lsdflow_evaluate.report.findings import larger_error, lsd_error_words
from lsdflow_evaluate.report.words import duration


def scores(
    split: float, merge: float, zero: float = 0.0, others: tuple[tuple[float, float], ...] = ()
) -> dict[str, Any]:
    """scores.json of threshold 0.5; `others`: (threshold, VOI) of the same merge function."""
    chosen = {"merge_function": "mean", "threshold": 0.5, "voi": split + merge}
    rows = [chosen, *({"merge_function": "mean", "threshold": t, "voi": voi} for t, voi in others)]
    rows.append({"merge_function": "hist_quant_75", "threshold": 0.1, "voi": 0.0})
    return {**chosen, "voi_split": split, "voi_merge": merge, "zero_fraction": zero, "thresholds": rows}


@pytest.mark.proves("TRB-14")
def test_cut_neurons_are_named_with_the_best_threshold_of_the_same_merge_function() -> None:
    said = larger_error(scores(2.0, 0.5, others=((0.6, 1.8), (0.8, 2.2))))
    assert said.startswith("Neurons are cut in pieces")
    assert "a higher threshold merges more" in said
    assert "0.6 is the best of those tried, with a VOI of 1.80" in said


@pytest.mark.proves("TRB-15")
def test_merged_neurons_are_named_and_that_no_threshold_helps() -> None:
    said = larger_error(scores(0.5, 2.0, others=((0.4, 2.5), (0.6, 2.6))))
    assert said.startswith("Neurons run together")
    assert "a lower threshold merges less" in said
    assert "None of those tried has a smaller VOI" in said


@pytest.mark.parametrize(("split", "merge"), [(1.0, 1.0), (1.4, 1.0), (0.05, 0.0)])
def test_balanced_or_tiny_errors_need_no_words(split: float, merge: float) -> None:
    assert larger_error(scores(split, merge)) == ""


@pytest.mark.proves("TRB-16")
def test_missing_neurons_are_named_with_their_share() -> None:
    assert larger_error(scores(1.0, 1.0, zero=0.3)).startswith("30.0% of the true neurons' voxels are in no segment")
    assert larger_error(scores(1.0, 1.0, zero=0.01)) == ""


def test_without_truth_there_are_no_words() -> None:
    assert larger_error({"has_truth": False, "reason": "no truth", "thresholds": []}) == ""


def test_the_lsd_error_is_reported_with_the_worst_segments_and_only_where_it_was_made() -> None:
    worst = [{"segment": n, "mean": 0.5 / n, "voxels_taken": 99} for n in range(1, 8)]
    text = lsd_error_words({"lsd_error": {"mean": 0.0625, "worst": worst}}).text
    assert "differ by 0.062 (of 1)" in text
    assert text.endswith("the segments that differ most: 1 (0.50), 2 (0.25), 3 (0.17), 4 (0.12), 5 (0.10).")
    assert lsd_error_words({"lsd_error": {"made": False, "reason": "none stored"}}).text == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (12.0, "12 s"),
        (200.0, "3 min 20 s"),
        (3600.0, "1 h"),
        (18720.0, "5 h 12 min"),
        (1e5, "1 d 3 h"),
    ],
)
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
