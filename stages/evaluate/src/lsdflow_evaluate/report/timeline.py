"""When the stages ran: a bar for every run on one time axis, in shares of its length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lsdflow_evaluate.report.content import duration
from lsdflow_evaluate.report.records import StageRecord, StageRun

# So short a bar could not be seen.
LEAST_PERCENT = 0.4
MOST_RUNS = 200
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class Bar:
    """One run: where it begins and how long it is in percent of the axis; `state`: done, failed, stopped, going."""

    left: float
    width: float
    state: str
    told: str


@dataclass(frozen=True)
class Row:
    """The runs of one stage, and what is said beside them."""

    stage: str
    bars: tuple[Bar, ...]
    told: str


@dataclass(frozen=True)
class Timeline:
    """All rows, and marks of the axis: (percent, text)."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    begin: str


def timeline(stages: Sequence[StageRecord], now: float) -> Timeline | None:
    """The timeline of all runs, the newest of each stage if there are many; None if nothing ran.

    A run without an outcome goes on until `now`, or was killed: its bar is drawn to there.
    """
    shown = [(record.stage, record.runs[-MOST_RUNS:]) for record in stages if record.runs]
    if not shown:
        return None
    begin = min(run.started for _, runs in shown for run in runs)
    end = max(_end(run, now) for _, runs in shown for run in runs)
    length = max(end - begin, 1.0)
    rows = tuple(Row(stage, tuple(_bar(r, begin, length, now) for r in runs), _told(runs)) for stage, runs in shown)
    step = next((s for s in STEPS_S if length / s <= 6), STEPS_S[-1])
    ticks = tuple((100.0 * s / length, duration(s) if s else "0") for s in range(0, int(length) + 1, step))
    return Timeline(rows, ticks[:12], time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begin)))


def run_state(run: StageRun) -> str:
    """done, failed, stopped (a signal), or going: it has left no outcome."""
    if run.exit_code is None:
        return "going"
    if run.exit_code == 0:
        return "done"
    return "stopped" if run.exit_code == 75 or run.exit_code >= 128 else "failed"


def _end(run: StageRun, now: float) -> float:
    return run.started + run.seconds if run.seconds is not None else max(now, run.started)


def _bar(run: StageRun, begin: float, length: float, now: float) -> Bar:
    left = 100.0 * (run.started - begin) / length
    width = max(100.0 * (_end(run, now) - run.started) / length, LEAST_PERCENT)
    state = run_state(run)
    taken = duration(run.seconds) if run.seconds is not None else "no end recorded"
    said = {"done": "done", "failed": f"exit code {run.exit_code}", "stopped": "stopped", "going": "no outcome yet"}
    return Bar(
        min(left, 100.0 - LEAST_PERCENT), min(width, 100.0 - left), state, f"{run.stage}: {said[state]}, {taken}"
    )


def _told(runs: Sequence[StageRun]) -> str:
    total = duration(sum(run.seconds for run in runs if run.seconds is not None))
    return total if len(runs) == 1 else f"{total} in {len(runs)} runs"
