"""What the page of one stage says: its tiles, the pictures of what it wrote, its charts, its runs, its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lsdflow_evaluate.report import numbers
from lsdflow_evaluate.report.content import NOTHING, Panel, Plane, Tile, duration, taken_words
from lsdflow_evaluate.report.curves import Axis, histogram
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.records import FAILED, FINISHED, NOT_STARTED, STOPPED, UNENDED, StageRecord
from lsdflow_evaluate.report.timeline import run_state

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
BINS = 24


@dataclass(frozen=True)
class RunRow:
    """One run in the table of runs, in words."""

    begun: str
    run_time: str
    ended: str
    style: str
    host: str
    job: str
    taken: tuple[str, ...]


def tiles(data: ReportData, record: StageRecord) -> tuple[Tile, ...]:
    """State, work, time, and what it took."""
    row = next((r for r in numbers.stage_rows(data) if r.stage == record.stage), None)
    value, state = STATES[record.state]
    last, taken = record.last, taken_words(record.taken)
    code = f"exit code {last.exit_code}" if last and last.exit_code else ""
    failed = f"{row.failed} failed" if row and row.failed else ""
    return (
        Tile("State", value, code or NOTES.get(record.state, ""), state),
        Tile("Work", row.work if row else NOTHING, failed),
        Tile("Run time", row.run_time if row else NOTHING, f"{len(record.runs)} runs" if len(record.runs) > 1 else ""),
        Tile("Processor time", taken[0], "all processes together"),
        Tile("Memory", taken[1], "the largest process" + ("" if taken[4] == NOTHING else f"; GPU {taken[4]}")),
        Tile("Read", taken[2], "" if taken[3] == NOTHING else f"{taken[3]} written"),
    )


def panels(planes: Sequence[Plane], stage: str) -> list[tuple[str, list[tuple[Panel, Plane]]]]:
    """For each layer that the stage writes its title, and its panels that have a figure, with their planes."""
    rows = []
    for title in WRITTEN.get(stage, ()):
        row = [(panel, plane) for plane in planes for panel in plane.panels if panel.title == title and panel.figure]
        if row:
            rows.append((title, row))
    return rows


def charts(data: ReportData, record: StageRecord, made: Mapping[str, list[str]]) -> list[str]:
    """The SVGs that belong to the stage, and the seconds of its blocks; `made`: those of the whole report."""
    named = {"segment": made["counts"] + made["sizes"], "evaluate": made["quality"]}.get(record.stage, [])
    losses = [numbers.loss_chart(curve) for curve in data.losses if curve.stage == record.stage]
    return [*named, *losses, *_block_chart(record)]


def _block_chart(record: StageRecord) -> list[str]:
    seconds = record.blocks.seconds[np.isfinite(record.blocks.seconds)] if record.blocks else np.zeros(0)
    if seconds.size < 2:
        return []
    milliseconds = np.maximum(1000 * seconds, 1.0)
    edges = np.unique(np.geomspace(milliseconds.min(), milliseconds.max() + 1, BINS).astype(np.int64))
    edges[-1] += 1
    counts, _ = np.histogram(milliseconds, bins=edges)
    return [histogram("Time per block", edges, counts.astype(np.int64), Axis("milliseconds", log=True), Axis("blocks"))]


def run_rows(record: StageRecord) -> tuple[RunRow, ...]:
    """The runs, the newest first."""
    rows = []
    for run in reversed(record.runs):
        state = run_state(run)
        said = {"done": "✓ done", "going": "no outcome yet", "stopped": "stopped"}.get(state, f"✗ {run.exit_code}")
        rows.append(
            RunRow(
                begun=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started)),
                run_time=duration(run.seconds) if run.seconds is not None else NOTHING,
                ended=f"{said}: {run.what}" if run.what and state == "failed" else said,
                style={"done": "good", "failed": "bad"}.get(state, "quiet"),
                host=run.host or NOTHING,
                job=run.job or NOTHING,
                taken=taken_words(run.taken),
            )
        )
    return tuple(rows)


def result(record: StageRecord) -> list[tuple[str, str]]:
    """What the manifest tells: outputs, identities, counts."""
    return [
        *((f"output {name}", path) for name, path in record.outputs),
        ("identity", record.identity),
        ("key of the work", record.key),
        ("hash of the settings", record.config_hash),
        *((f"input {name}", identity) for name, identity in record.inputs),
        *record.facts,
        ("contract", record.contract),
    ]
