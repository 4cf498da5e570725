"""When the stages ran: a bar for every run on one time axis, in shares of its length; long pauses are cut short."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lsdflow_evaluate.report.content import duration
from lsdflow_evaluate.report.records import StageRecord, StageRun

# So short a bar could not be seen.
LEAST_PERCENT = 0.4
MOST_RUNS = 200
LEAST_TICK_PERCENT = 12.0
# A pause longer than this share of all run times is a break of the axis, drawn with this width.
LONG_PAUSE_SHARE, BREAK_SHARE = 0.5, 0.06
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


@dataclass(frozen=True)
class _Axis:
    """Periods in which something ran, one after another; between them a break of fixed width, however long it was."""

    periods: tuple[tuple[float, float], ...]

    @property
    def _break_s(self) -> float:
        return BREAK_SHARE * sum(end - begin for begin, end in self.periods)

    @property
    def length_s(self) -> float:
        busy = sum(end - begin for begin, end in self.periods)
        return busy + self._break_s * (len(self.periods) - 1)

    def percent(self, moment: float) -> float:
        """Where a moment of a period lies on the axis."""
        before = 0.0
        for begin, end in self.periods:
            if moment <= end:
                return 100.0 * (before + max(moment - begin, 0.0)) / self.length_s
            before += end - begin + self._break_s
        return 100.0

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Round times since the start; after a break, the time at which the next period began."""
        begin, end = self.periods[0]
        step = next((s for s in STEPS_S if self.length_s / s <= 8), STEPS_S[-1])
        first = [(self.percent(begin + s), duration(s) if s else "0") for s in range(0, int(end - begin) + 1, step)]
        later = [(self.percent(b), f"‖ {duration(b - begin)}") for b, _ in self.periods[1:]]
        shown: list[tuple[float, str]] = []
        for tick in [*first, *later]:
            if shown and tick[0] - shown[-1][0] < LEAST_TICK_PERCENT:
                shown.pop()  # a later period is told rather than a round time before it
            shown.append(tick)
        return tuple(shown)


def timeline(stages: Sequence[StageRecord], now: float) -> Timeline | None:
    """The timeline of all runs, the newest of each stage if there are many; None if nothing ran.

    A run without an outcome goes on until `now`, or was killed: its bar is drawn to there.
    """
    shown = [(record.stage, record.runs[-MOST_RUNS:]) for record in stages if record.runs]
    if not shown:
        return None
    axis = _Axis(busy_periods([(run.started, _end(run, now)) for _, runs in shown for run in runs]))
    rows = tuple(Row(stage, tuple(_bar(run, axis, now) for run in runs), _told(runs)) for stage, runs in shown)
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(axis.periods[0][0]))
    return Timeline(rows, axis.ticks(), begun)


def busy_periods(runs: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Periods (begin, end) in which runs follow each other without a long pause: one much longer than all runs last."""
    long_s = LONG_PAUSE_SHARE * sum(end - begin for begin, end in runs)
    periods: list[tuple[float, float]] = []
    for begin, end in sorted(runs):
        if periods and begin - periods[-1][1] <= max(long_s, 1.0):
            periods[-1] = (periods[-1][0], max(periods[-1][1], end))
        else:
            periods.append((begin, max(end, begin + 1e-3)))
    return tuple(periods)


def run_state(run: StageRun) -> str:
    """done, failed, stopped (a signal), or going: it has left no outcome."""
    if run.exit_code is None:
        return "going"
    if run.exit_code == 0:
        return "done"
    return "stopped" if run.exit_code == 75 or run.exit_code >= 128 else "failed"


def _end(run: StageRun, now: float) -> float:
    return run.started + run.seconds if run.seconds is not None else max(now, run.started)


def _bar(run: StageRun, axis: _Axis, now: float) -> Bar:
    left = min(axis.percent(run.started), 100.0 - LEAST_PERCENT)
    width = max(axis.percent(_end(run, now)) - left, LEAST_PERCENT)
    state = run_state(run)
    taken = duration(run.seconds) if run.seconds is not None else "no end recorded"
    said = {"done": "done", "failed": f"exit code {run.exit_code}", "stopped": "stopped", "going": "no outcome yet"}
    return Bar(left, min(width, 100.0 - left), state, f"{run.stage}: {said[state]}, {taken}")


def _told(runs: Sequence[StageRun]) -> str:
    total = duration(sum(run.seconds for run in runs if run.seconds is not None))
    return total if len(runs) == 1 else f"{total} in {len(runs)} runs"
