"""How much of its time a training waits for its batches."""

from __future__ import annotations

import json
import logging

import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lsdflow_training import run
from lsdflow_training.curves import Curves
from lsdflow_training.timing import FIRST_STEPS, DataWait


class Day:
    """A clock; steps(wait, 3, waited, worked): three steps of these seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def steps(self, wait: DataWait, count: int, waited: float, worked: float) -> None:
        for _ in range(count):
            with wait:
                self.now += waited
            self.now += worked


def test_the_share_is_the_time_waited_of_all_time_without_the_start_of_the_first_batch() -> None:
    day = Day()
    wait = DataWait(clock=day)
    assert wait.share is None
    day.steps(wait, 1, 1000.0, 3.0)
    assert wait.share is None
    day.steps(wait, 4, 1.0, 3.0)
    assert wait.share == pytest.approx(4 / 19)


@pytest.mark.proves("TRB-11")
def test_waiting_more_than_a_tenth_is_reported_once_with_a_remedy(caplog) -> None:
    day = Day()
    wait = DataWait(clock=day)
    day.steps(wait, FIRST_STEPS, 1.0, 3.0)
    assert not caplog.records
    day.steps(wait, 50, 1.0, 3.0)
    (warned,) = caplog.records
    assert warned.levelno == logging.WARNING
    assert "25 %" in warned.getMessage()
    assert "num_workers" in warned.getMessage()
    assert 'pipeline = "gpu"' in warned.getMessage()


def test_a_training_that_hardly_waits_and_a_process_that_does_not_write_warn_nobody(caplog) -> None:
    for wait, waited in ((DataWait(clock=(day := Day())), 0.05), (DataWait(warn=False, clock=day), 3.0)):
        day.steps(wait, 2 * FIRST_STEPS, waited, 1.0)
    assert not caplog.records


def test_the_share_is_a_curve_of_its_own(tmp_path) -> None:
    day = Day()
    wait = DataWait(clock=day)
    day.steps(wait, 5, 1.0, 3.0)
    with Curves(tmp_path, 0) as curves:
        wait.log(curves, 7)
    (event,) = EventAccumulator(str(tmp_path / "log")).Reload().Scalars("data_wait")
    assert (event.step, event.value) == (7, pytest.approx(wait.share))


def test_the_manifest_of_a_training_has_the_share(prepared) -> None:
    training = prepared("affinities", max_iteration=3)
    run.run_training(training)
    manifest = training.experiment.layout.manifest("train-acrlsd")
    assert 0 < json.loads(manifest.read_text())["facts"]["data_wait_share"] < 1
