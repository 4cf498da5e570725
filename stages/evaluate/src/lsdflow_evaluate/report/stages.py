"""The contents of the page of one stage: tiles, pictures, charts, runs, result; and the timeline of all stages.

The timeline has a bar for every run on one time axis, in shares of its length; long pauses are cut short.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.hashing import hash_of
from lsdflow_evaluate.report.charts import block_time_chart, loss_chart
from lsdflow_evaluate.report.content import Panel, Plane, Tile, stage_row
from lsdflow_evaluate.report.data import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    STOPPED,
    UNENDED,
    ReportData,
    StageRecord,
    StageRun,
)
from lsdflow_evaluate.report.words import NOTHING, duration, resource_words

# The layers that a stage writes, or, for evaluate, compares.
WRITTEN = {
    "prepare": ("Raw", "Truth"),
    "predict": ("LSDs", "Affinities"),
    "watershed": ("Fragments",),
    "segment": ("Segmentation",),
    "evaluate": ("Segmentation", "Truth", "LSD error"),
}
STATES = {
    FINISHED: ("✓ finished", "good"),
    FAILED: ("✗ failed", "bad"),
    STOPPED: ("stopped", ""),
    UNENDED: ("no outcome", ""),
    NOT_STARTED: (NOTHING, ""),
}
NOTES = {STOPPED: "run it again to resume", UNENDED: "it runs, or was killed", NOT_STARTED: "not started"}
# So short a bar could not be seen.
LEAST_PERCENT = 0.4
MOST_RUNS = 200
LEAST_TICK_PERCENT = 12.0
# A pause longer than this share of all run times is a break of the axis, drawn with this width.
LONG_PAUSE_SHARE, BREAK_SHARE = 0.5, 0.06
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)


def stage_tiles(data: ReportData, record: StageRecord) -> tuple[Tile, ...]:
    """State, work, time, and the resources used."""
    row, (value, state) = stage_row(data, record.stage), STATES[record.state]
    processor, memory, read, written, gpu = row.used
    code = f"exit code {record.last.exit_code}" if record.last and record.last.exit_code else ""
    return (
        Tile("State", value, code or NOTES.get(record.state, ""), state),
        Tile("Work", row.work, f"{row.failed} failed" if row.failed else ""),
        Tile("Run time", row.run_time, f"{len(record.runs)} runs" if len(record.runs) > 1 else ""),
        Tile("Processor time", processor, "all processes together"),
        Tile("Memory", memory, "the largest process" + ("" if gpu == NOTHING else f"; GPU {gpu}")),
        Tile("Read", read, "" if written == NOTHING else f"{written} written"),
    )


def stage_panels(planes: Sequence[Plane], stage: str) -> list[tuple[str, list[tuple[Panel, Plane]]]]:
    """For each layer that the stage writes its title, and its panels that have a figure, with their planes."""
    rows = []
    for title in WRITTEN.get(stage, ()):
        row = [(panel, plane) for plane in planes for panel in plane.panels if panel.title == title and panel.figure]
        if row:
            rows.append((title, row))
    return rows


def stage_charts(data: ReportData, stage: str, made: Mapping[str, list[str]]) -> list[str]:
    """The SVGs that belong to the stage, and the seconds of its blocks; `made`: those of the whole report."""
    named = {"segment": made["counts"] + made["sizes"], "evaluate": made["quality"]}.get(stage, [])
    losses = [loss_chart(curve) for curve in data.losses if curve.stage == stage]
    return [*named, *losses, *block_time_chart(data.blocks.get(stage))]


def run_rows(record: StageRecord) -> list[dict[str, Any]]:
    """The runs in words, the newest first."""
    rows = []
    for run in reversed(record.runs):
        said = {"done": "✓ done", "going": "no outcome yet", "stopped": "stopped"}.get(run.state, f"✗ {run.exit_code}")
        rows.append(
            {
                "begun": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started)),
                "run_time": duration(run.seconds) if run.seconds is not None else NOTHING,
                "ended": f"{said}: {run.what}" if run.what and run.state == "failed" else said,
                "style": {"done": "good", "failed": "bad"}.get(run.state, "quiet"),
                "host": run.host or NOTHING,
                "job": run.job or NOTHING,
                "used": resource_words(run.resources),
            }
        )
    return rows


def result_rows(record: StageRecord) -> list[tuple[str, str]]:
    """The outputs, identities and counts in the manifest; none if the stage has not finished."""
    found = record.manifest
    if found is None:
        return []
    facts = {k: v for k, v in found.facts.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    return [
        *((f"output {name}", path) for name, path in found.outputs.items()),
        ("identity", found.identity),
        ("key of the work", found.key),
        ("hash of the settings", hash_of(found.config)),
        *((f"input {name}", identity) for name, identity in found.inputs.items()),
        *((name, f"{value:,.6g}" if isinstance(value, float) else str(value)) for name, value in facts.items()),
        ("contract", found.contract),
    ]


@dataclass(frozen=True)
class Bar:
    """One run: where it begins and how long it is in percent of the axis; `state`: done, failed, stopped, going."""

    left: float
    width: float
    state: str
    note: str


@dataclass(frozen=True)
class Row:
    """The runs of one stage, and a note beside them: their run time."""

    stage: str
    bars: tuple[Bar, ...]
    note: str


@dataclass(frozen=True)
class Timeline:
    """All rows, and marks of the axis: (percent, text)."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    begin: str


@dataclass(frozen=True)
class _TimeAxis:
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
        """The position of a moment of a period on the axis."""
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
                shown.pop()  # a later period is marked rather than a round time before it
            shown.append(tick)
        return tuple(shown)


def timeline(stages: Sequence[StageRecord], now: float) -> Timeline | None:
    """The timeline of all runs, the newest of each stage if there are many; None if nothing ran.

    A run without an outcome goes on until `now`, or was killed: its bar is drawn to there.
    """
    shown = [(record.stage, record.runs[-MOST_RUNS:]) for record in stages if record.runs]
    if not shown:
        return None
    axis = _TimeAxis(busy_periods([(run.started, _end(run, now)) for _, runs in shown for run in runs]))
    rows = tuple(Row(stage, tuple(_bar(run, axis, now) for run in runs), _run_time(runs)) for stage, runs in shown)
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


def _end(run: StageRun, now: float) -> float:
    return run.started + run.seconds if run.seconds is not None else max(now, run.started)


def _bar(run: StageRun, axis: _TimeAxis, now: float) -> Bar:
    left = min(axis.percent(run.started), 100.0 - LEAST_PERCENT)
    width = max(axis.percent(_end(run, now)) - left, LEAST_PERCENT)
    lasted = duration(run.seconds) if run.seconds is not None else "no end recorded"
    said = {"done": "done", "failed": f"exit code {run.exit_code}", "stopped": "stopped", "going": "no outcome yet"}
    return Bar(left, min(width, 100.0 - left), run.state, f"{run.stage}: {said[run.state]}, {lasted}")


def _run_time(runs: Sequence[StageRun]) -> str:
    total = duration(sum(run.seconds for run in runs if run.seconds is not None))
    return total if len(runs) == 1 else f"{total} in {len(runs)} runs"
