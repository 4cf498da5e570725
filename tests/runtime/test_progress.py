"""What people read while they wait: done, rate, and when it will be over."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lsdflow_command import progress as module
from lsdflow_command.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stays at its value until it is changed."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(("seconds", "eta"), [(None, "15m00s"), (600.0, "8m20s"), (5000.0, "15m00s"), (50.0, "0m00s")])
def test_eta_is_that_of_the_units_or_of_the_time_allowed_whichever_is_sooner(
    clock: list[float], seconds: float | None, eta: str
) -> None:
    bar = Progress("train", 1000, "iteration", seconds=seconds)
    bar.advance(100)
    clock[0] = 100.0
    assert bar.line() == f"train: 100/1000 iterations, 1 iteration/s, ETA {eta}"


@pytest.mark.proves("MON-07")
def test_a_log_shows_rate_and_eta_within_five_seconds_and_then_once_a_minute(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    bar = Progress("train", 1000, "iteration")
    with caplog.at_level("INFO", logger="lsdflow.progress"):
        for second in range(1, 126):
            clock[0] = float(second)
            bar.advance(1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["3/1000", "63/1000", "123/1000"]
    assert "1 iteration/s, ETA 16m37s" in lines[0]


def test_the_end_of_a_log_does_not_repeat_a_line(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="lsdflow.progress"):
        with Progress("predict", 1, "block") as bar:
            clock[0] = 10.0
            bar.advance()
        with Progress("predict", 2, "block") as bar:
            clock[0] = 20.0
            bar.advance()
            bar.advance()
    lines = [record.getMessage() for record in caplog.records if "already" not in record.getMessage()]
    assert lines == [
        "predict: 1/1 blocks, 0.1 block/s",
        "predict: 1/2 blocks, 0.1 block/s, ETA 0m10s",
        "predict: 2/2 blocks, 0.2 block/s",
    ]


def test_units_of_an_earlier_run_do_not_count_for_the_rate(clock: list[float]) -> None:
    bar = Progress("predict", 40, "block", already=20)
    bar.advance(10)
    clock[0] = 5.0
    assert bar.line() == "predict: 30/40 blocks, 2 block/s, ETA 0m05s"


def test_what_is_over_has_no_eta(clock: list[float]) -> None:
    bar = Progress("predict", 4, "block")
    bar.advance(4)
    clock[0] = 2.0
    assert bar.line() == "predict: 4/4 blocks, 2 block/s"


def test_failed_blocks_are_reported_beside_those_that_are_done(clock: list[float]) -> None:
    bar = Progress("predict", 8, "block")
    bar.advance(4)
    bar.failed = 2
    clock[0] = 2.0
    assert bar.line() == "predict: 4/8 blocks, 2 failed, 2 block/s, ETA 0m02s"


def test_parts_of_units_count_for_rate_eta_and_line(clock: list[float]) -> None:
    with Progress("predict", total=4, unit="block") as progress:
        clock[0] += 10
        progress.under_way = 0.5
        assert progress.line() == "predict: 0.5/4 blocks, 0.05 block/s, ETA 1m10s"
        progress.under_way = 0.0
        progress.advance(4)
        assert progress.line().startswith("predict: 4/4 blocks")
