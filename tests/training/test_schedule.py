"""The learning rate over a training, and what ends it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("gunpowder")

from lsdflow_training.schedule import learning_rate, limit_reached, progress, seconds_left
from lsdflow_training.settings import Schedule, Schedules

RATE = 1e-3


def schedules(schedule: Schedule = "one_cycle", max_minutes: float | None = None, warmup: int = 50) -> Schedules:
    return Schedules(
        max_iteration=1000,
        max_minutes=max_minutes,
        learning_rate=RATE,
        schedule=schedule,
        warmup_iterations=warmup,
        schedule_iterations=None,
        betas=(0.95, 0.999),
        checkpoint_every=100,
        keep_checkpoints=2,
        keep_best=1,
        snapshot_every=100,
        validation_every=100,
        validation_patches=1,
        profile_every=100,
    )


def cosine(share: float) -> float:
    """Half a cosine from 1 down to 1 %."""
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share))


def test_a_constant_rate_is_the_same_from_the_first_step_to_the_last() -> None:
    how = schedules("constant", max_minutes=10)
    assert {learning_rate(how, i, m) for i, m in ((1, 0.0), (500, 9.0), (1000, 99.0))} == {RATE}


@pytest.mark.proves("DDP-13")
def test_one_cycle_warms_up_in_a_line_over_its_first_iterations() -> None:
    how = schedules()
    for iteration in (1, 10, 25, 49, 50):
        expected = RATE * iteration / 50 * cosine(iteration / 1000)
        assert learning_rate(how, iteration, 0.0) == pytest.approx(expected, rel=1e-12)
    rates = [learning_rate(how, iteration, 0.0) for iteration in range(1, 1001)]
    assert rates[0] == pytest.approx(RATE / 50, rel=1e-3)
    assert rates.index(max(rates)) == 49
    assert all(later < sooner for sooner, later in pairwise(rates[49:]))


@pytest.mark.proves("DDP-13")
def test_one_cycle_ends_at_one_percent_of_its_rate_after_its_iterations() -> None:
    how = schedules()
    assert learning_rate(how, 500, 0.0) == pytest.approx(RATE * 0.505)
    assert learning_rate(how, 1000, 0.0) == pytest.approx(RATE * 0.01)
    assert learning_rate(how, 5000, 0.0) == pytest.approx(RATE * 0.01)


def test_one_cycle_ends_at_one_percent_after_its_minutes_if_they_come_first() -> None:
    how = schedules(max_minutes=10)
    assert learning_rate(how, 100, 5.0) == pytest.approx(RATE * 0.505)
    assert learning_rate(how, 100, 10.0) == pytest.approx(RATE * 0.01)
    assert learning_rate(how, 100, 30.0) == pytest.approx(RATE * 0.01)
    assert progress(how, 900, 5.0) == 0.9


@pytest.mark.parametrize("step_minutes", [0.02, 0.1, 0.5])
def test_one_cycle_is_complete_within_its_minutes_however_slow_a_step_is(step_minutes: float) -> None:
    how, rates, clock = schedules(max_minutes=10), [], 0.0
    while limit_reached(how, len(rates), clock) is None:
        rates.append(learning_rate(how, len(rates) + 1, clock))
        clock += step_minutes
    assert clock <= 10 + step_minutes
    assert max(rates) > 0.9 * RATE
    assert rates.index(max(rates)) <= 0.15 * len(rates)
    assert rates[-1] < 0.02 * RATE


def test_a_later_end_stretches_one_cycle() -> None:
    """So a training whose end was raised after it had begun is not the one that had this end from the start."""
    short, long = schedules(max_minutes=10), schedules(max_minutes=20)
    assert learning_rate(long, 100, 5.0) > 1.5 * learning_rate(short, 100, 5.0)


@pytest.mark.proves("DDP-13")
def test_a_cycle_of_its_own_length_does_not_depend_on_when_the_training_ends() -> None:
    how = replace(schedules(), schedule_iterations=400)
    for iteration, share in ((100, 0.25), (200, 0.5), (400, 1.0), (900, 1.0)):
        assert learning_rate(how, iteration, 0.0) == pytest.approx(RATE * cosine(share))
    longer = replace(how, max_iteration=5000)
    assert [learning_rate(longer, i, 0.0) for i in range(1, 1001)] == [
        learning_rate(how, i, 0.0) for i in range(1, 1001)
    ]


def test_the_key_of_a_training_knows_its_warm_up_and_cycle_only_if_they_are_set() -> None:
    usual = schedules().parameters()
    assert usual.keys() == {"learning_rate", "schedule", "betas"}
    assert schedules(warmup=20).parameters() == {**usual, "warmup_iterations": 20}
    assert replace(schedules(), schedule_iterations=50).parameters() == {**usual, "schedule_iterations": 50}
    constant = replace(schedules("constant", warmup=20), schedule_iterations=400)
    assert constant.parameters() == {**usual, "schedule": "constant"}


def test_without_warm_up_one_cycle_begins_at_its_rate() -> None:
    assert learning_rate(schedules(warmup=0), 1, 0.0) == pytest.approx(RATE * cosine(1 / 1000))


@pytest.mark.parametrize(
    ("iteration", "minutes", "budget", "wanted"),
    [
        (0, 0.0, None, None),
        (999, 1e9, None, None),
        (1000, 0.0, None, "max_iteration"),
        (1001, 0.0, None, "max_iteration"),
        (1, 9.99, 10, None),
        (1, 10.0, 10, "max_minutes"),
        (0, 99.0, 10, None),
        (1000, 99.0, 10, "max_iteration"),
    ],
)
def test_iterations_end_a_training_or_minutes_after_at_least_one_of_them(
    iteration: int, minutes: float, budget: float | None, wanted: str | None
) -> None:
    assert limit_reached(schedules(max_minutes=budget), iteration, minutes) == wanted


def test_seconds_left_are_those_of_the_minutes_that_no_run_has_used_yet() -> None:
    assert seconds_left(schedules(max_minutes=10), 4.0) == 360.0
    assert seconds_left(schedules(max_minutes=10), 11.0) == 0.0
    assert seconds_left(schedules(), 4.0) is None
