"""Thresholds are exact decimals: each has its own name, and the wrong ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.lut import legacy_lut_name, lut_name
from lsdflow_segment.thresholds import require_computed, ten_thousandths, threshold_range, with_extra


def test_a_step_of_a_hundredth_gives_a_hundred_and_one_different_names() -> None:
    thresholds = threshold_range((0.0, 1.0), 0.01)
    assert len({lut_name("m", t) for t in thresholds}) == len(thresholds) == 101
    assert thresholds[28] == 0.28 and thresholds[29] == 0.29  # noqa: PT018
    assert lut_name("m", 0.28) != lut_name("m", 0.29)


def test_the_published_names_collide_where_ours_do_not() -> None:
    assert legacy_lut_name("m", 0.28) == legacy_lut_name("m", 0.29)
    assert legacy_lut_name("m", 0.56) == legacy_lut_name("m", 0.57)


@given(st.integers(0, 10_000))
def test_every_four_decimal_threshold_survives_the_round_trip(parts: int) -> None:
    assert ten_thousandths(parts / 10_000, "t") == parts
    assert ten_thousandths(float(f"{parts / 10_000:.4f}"), "t") == parts


def test_both_ends_are_in_the_range() -> None:
    assert threshold_range((0.1, 0.3), 0.1) == (0.1, 0.2, 0.3)
    assert threshold_range((0.5, 0.5), 0.02) == (0.5,)
    assert threshold_range((0.1, 0.25), 0.1) == (0.1, 0.2)


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
        threshold_range(minmax, step)


def test_extra_thresholds_are_added_once_and_in_order() -> None:
    assert with_extra((0.1, 0.2), [0.15, 0.2], "extra_thresholds") == (0.1, 0.15, 0.2)


def test_a_threshold_that_was_not_computed_is_refused_with_those_that_were() -> None:
    assert require_computed(0.2, (0.1, 0.2), "m") == 0.2
    with pytest.raises(MissingInput) as refusal:
        require_computed(0.25, (0.1, 0.2), "hist_quant_75")
    assert "0.1000, 0.2000" in refusal.value.found
    assert refusal.value.exit_code == 66
