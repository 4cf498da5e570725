"""Charts, the table of stages and the table of the chosen score, from `ReportData` to finished SVGs and plain texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lsdflow_evaluate.report.content import NOTHING, chosen_count, duration, taken_words
from lsdflow_evaluate.report.curves import Axis, Line, Marks, histogram, line_chart, short
from lsdflow_evaluate.report.data import BlockTimes, LossCurve, ReportData, Score, StageVersion
from lsdflow_evaluate.report.records import StageRecord, Taken

STAGES = ("prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate")
THRESHOLD = "threshold   (merge more →)"
SERIES_STYLES = ("s0", "s1", "s2", "s3", "s4")


@dataclass(frozen=True)
class StageRow:
    """One line of the table of stages; texts, `done_percent` None where the stage has no blocks; `page`: it has one."""

    stage: str
    page: bool
    work: str
    run_time: str
    block_time: str
    taken: tuple[str, ...]
    done_percent: float | None
    failed: int


@dataclass(frozen=True)
class VersionRow:
    """Who wrote the artefacts of a stage, with which settings, and what they are; texts."""

    stage: str
    version: str
    digest: str
    revision: str
    contract: str
    config_hash: str
    identity: str


def charts(data: ReportData) -> dict[str, list[str]]:
    """Finished SVGs: `quality` by threshold, `counts`, `sizes`, `losses`; empty lists where there is nothing."""
    return {
        "quality": [
            chart
            for name in _names(s.merge_function for s in data.scores)
            for chart in (_quality_chart(data, name), _rand_chart(data, name))
        ],
        "counts": [*_counts_charts(data), *_steadiness_charts(data)],
        "sizes": _size_chart(data),
        "losses": [loss_chart(curve) for curve in data.losses],
    }


def _names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _quality_chart(data: ReportData, merge_function: str) -> str:
    scores = sorted((s for s in data.scores if s.merge_function == merge_function), key=lambda s: s.threshold)
    x = np.array([s.threshold for s in scores])
    lines = [
        Line("split", x, np.array([s.voi_split for s in scores]), "s0"),
        Line("merge", x, np.array([s.voi_merge for s in scores]), "s1"),
        Line("sum", x, np.array([s.voi for s in scores]), "ink"),
    ]
    chosen = next((s for s in scores if s.chosen), None)
    limit = next((v for v in data.verdicts if "voi" in v.name.lower()), None)
    marks = Marks(
        chosen=chosen.threshold if chosen else None,
        chosen_text=f"chosen {chosen.threshold:g}: {chosen.voi:.3f}" if chosen else "",
        limit=limit.limit if limit else None,
        limit_text=f"{limit.comparison} {limit.limit:g}" if limit else "",
    )
    return line_chart(f"VOI · {merge_function}", lines, Axis(THRESHOLD), Axis("bits", from_zero=True), marks)


def _rand_chart(data: ReportData, merge_function: str) -> str:
    scores = sorted((s for s in data.scores if s.merge_function == merge_function), key=lambda s: s.threshold)
    x = np.array([s.threshold for s in scores])
    lines = [
        Line("split", x, np.array([s.rand_split for s in scores]), "s0"),
        Line("merge", x, np.array([s.rand_merge for s in scores]), "s1"),
        Line("adapted error", x, np.array([s.adapted_rand_error for s in scores]), "ink"),
    ]
    runs = np.array([np.nan if s.normalized_erl is None else s.normalized_erl for s in scores])
    if np.isfinite(runs).any():
        lines.append(Line("norm. ERL", x, runs, "s2"))
    chosen = next((s for s in scores if s.chosen), None)
    marks = Marks(chosen=chosen.threshold if chosen else None)
    return line_chart(
        f"Rand and run length · {merge_function}", lines, Axis(THRESHOLD), Axis("0 to 1", from_zero=True), marks
    )


def _steadiness_charts(data: ReportData) -> list[str]:
    """How much the partition changes from one threshold to the next: advice that needs no truth."""
    lines = []
    for name, style in zip(_names(c.merge_function for c in data.segment_counts), SERIES_STYLES, strict=False):
        counts = sorted((c for c in data.segment_counts if c.merge_function == name), key=lambda c: c.threshold)
        change = [np.nan if c.change_to_next is None else c.change_to_next for c in counts]
        if np.isfinite(change).any():
            lines.append(Line(name, np.array([c.threshold for c in counts]), np.array(change), style))
    if not lines:
        return []
    chosen = chosen_count(data)
    marks = Marks(chosen=chosen.threshold if chosen else None)
    y_axis = Axis("bits to the next threshold", from_zero=True)
    return [line_chart("Steadiness, without truth (low: steady)", lines, Axis(THRESHOLD), y_axis, marks)]


def _counts_charts(data: ReportData) -> list[str]:
    names = _names(c.merge_function for c in data.segment_counts)
    if not names:
        return []
    lines = []
    for name, style in zip(names, SERIES_STYLES, strict=False):
        counts = sorted((c for c in data.segment_counts if c.merge_function == name), key=lambda c: c.threshold)
        x, y = np.array([c.threshold for c in counts]), np.array([float(c.segments) for c in counts])
        lines.append(Line(name, x, y, style))
    chosen = chosen_count(data)
    marks = Marks(
        chosen=chosen.threshold if chosen else None, chosen_text=f"chosen {chosen.threshold:g}" if chosen else ""
    )
    return [line_chart("Segments", lines, Axis(THRESHOLD), Axis("number of segments", log=True), marks)]


def _size_chart(data: ReportData) -> list[str]:
    sizes = data.segment_sizes
    if sizes is None:
        return []
    return [
        histogram(
            "Segment sizes", sizes.edges_vox, sizes.counts, Axis("voxels per segment", log=True), Axis("segments")
        )
    ]


def loss_chart(curve: LossCurve) -> str:
    """Loss and validation loss of one training."""
    x = curve.iterations.astype(np.float64)
    lines = [Line(name, x, y, style) for (name, y), style in zip(curve.series.items(), SERIES_STYLES, strict=False)]
    positive = all(np.all(y[np.isfinite(y)] > 0) for y in curve.series.values())
    return line_chart(f"Loss · {curve.stage}", lines, Axis("iteration"), Axis("loss", log=positive))


def stage_rows(data: ReportData) -> tuple[StageRow, ...]:
    """Every stage that is known, in the order of the pipeline."""
    known = {v.stage for v in data.versions} | {t.stage for t in data.block_times} | {c.stage for c in data.losses}
    known |= {record.stage for record in data.stages if record.runs}
    ordered = [s for s in STAGES if s in known] + sorted(known - set(STAGES))
    return tuple(_stage_row(data, stage) for stage in ordered)


def version_rows(data: ReportData) -> tuple[VersionRow, ...]:
    """Every stage that has finished, with who wrote it."""
    hashes = {record.stage: record.config_hash for record in data.stages}
    return tuple(
        VersionRow(
            stage=found.stage,
            version=found.version or "unknown",
            digest=found.image_digest or "no image",
            revision=found.revision or "unknown",
            contract=found.contract,
            config_hash=hashes.get(found.stage, "") or NOTHING,
            identity=found.identity,
        )
        for found in data.versions
    )


def _stage_row(data: ReportData, stage: str) -> StageRow:
    version = next((v for v in data.versions if v.stage == stage), None)
    times = next((t for t in data.block_times if t.stage == stage), None)
    loss = next((c for c in data.losses if c.stage == stage), None)
    record = next((r for r in data.stages if r.stage == stage), None)
    work = NOTHING
    if times is not None:
        work = f"{times.done:,} of {times.total:,} blocks"
    elif loss is not None and loss.iterations.size:
        work = f"{int(loss.iterations.max()):,} iterations"
    return StageRow(
        stage=stage,
        page=record is not None,
        work=work,
        run_time=_run_time(version, record),
        block_time=_block_time(times),
        taken=taken_words(record.taken if record else Taken()),
        done_percent=100.0 * times.done / times.total if times and times.total else None,
        failed=times.failed if times else 0,
    )


def _run_time(version: StageVersion | None, record: StageRecord | None) -> str:
    """Of the work as its manifest tells it; else of all runs."""
    if version is not None and version.wall_s is not None:
        return duration(version.wall_s)
    known = [run.seconds for run in record.runs if run.seconds is not None] if record else []
    return duration(sum(known)) if known else NOTHING


def _block_time(times: BlockTimes | None) -> str:
    if times is None or times.seconds.size == 0:
        return NOTHING
    middle, slow = (float(np.nanpercentile(times.seconds, q)) for q in (50, 95))
    return f"{duration(middle)} · 95 %: {duration(slow)}"


def score_values(score: Score) -> tuple[tuple[str, str], ...]:
    """All values of one score with their names, for the table of details."""
    values = [
        ("VOI split", f"{score.voi_split:.4f} bits"),
        ("VOI merge", f"{score.voi_merge:.4f} bits"),
        ("Rand split", f"{score.rand_split:.4f}"),
        ("Rand merge", f"{score.rand_merge:.4f}"),
        ("adapted Rand error", f"{score.adapted_rand_error:.4f}"),
        ("NVI split", f"{score.nvi_split:.4f}"),
        ("NVI merge", f"{score.nvi_merge:.4f}"),
    ]
    if score.expected_run_length_nm is not None:
        best = f" of {short(score.max_erl_nm / 1000)} µm" if score.max_erl_nm else ""
        values.append(("expected run length", f"{score.expected_run_length_nm / 1000:.2f} µm{best}"))
    if score.normalized_erl is not None:
        values.append(("normalised ERL", f"{score.normalized_erl:.4f}"))
    return tuple(values)
