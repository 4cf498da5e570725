"""The charts of the report: which values are drawn, and with which marks; from `ReportData` to finished SVGs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lsdflow_evaluate.report.content import chosen_lut, chosen_score
from lsdflow_evaluate.report.curves import Axis, Line, Marks, histogram, line_chart
from lsdflow_evaluate.report.data import LossCurve, ReportData, StageBlocks

THRESHOLD = Axis("threshold   (merge more →)")
SERIES_STYLES = ("s0", "s1", "s2", "s3", "s4")
# Names of curves, their values in a row of scores.json, and styles.
VOI_CURVES = (("split", "voi_split", "s0"), ("merge", "voi_merge", "s1"), ("sum", "voi", "ink"))
RAND_CURVES = (
    ("split", "rand_split", "s0"),
    ("merge", "rand_merge", "s1"),
    ("adapted error", "adapted_rand_error", "ink"),
)
TIME_BINS = 24


def charts(data: ReportData) -> dict[str, list[str]]:
    """Finished SVGs: `quality` by threshold, `counts`, `sizes`, `losses`; empty lists where there is nothing."""
    quality = []
    for name, rows in _by_merge_function(data.scores.get("thresholds", ())).items():
        quality += [_voi_chart(data, name, rows), _rand_chart(data, name, rows)]
    return {
        "quality": quality,
        "counts": [*_counts_chart(data), *_steadiness_chart(data)],
        "sizes": _size_chart(data),
        "losses": [loss_chart(curve) for curve in data.losses],
    }


def _by_merge_function(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of each merge function by rising threshold."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["merge_function"], []).append(row)
    return {name: sorted(own, key=lambda row: row["threshold"]) for name, own in found.items()}


def _line(name: str, rows: Sequence[Mapping[str, Any]], value: str, style: str) -> Line:
    """A curve by threshold; NaN where the value is not known."""
    y = [np.nan if row.get(value) is None else float(row[value]) for row in rows]
    return Line(name, np.array([row["threshold"] for row in rows]), np.array(y), style)


def _chosen_of(data: ReportData, merge_function: str) -> Mapping[str, Any] | None:
    chosen = chosen_score(data)
    return chosen if chosen and chosen["merge_function"] == merge_function else None


def _voi_chart(data: ReportData, merge_function: str, rows: Sequence[Mapping[str, Any]]) -> str:
    chosen = _chosen_of(data, merge_function)
    marks = Marks(
        chosen=chosen["threshold"] if chosen else None,
        chosen_text=f"chosen {chosen['threshold']:g}: {chosen['voi']:.3f}" if chosen else "",
        limit=data.voi_limit,
        limit_text=f"< {data.voi_limit:g}",
    )
    lines = [_line(name, rows, value, style) for name, value, style in VOI_CURVES]
    return line_chart(f"VOI · {merge_function}", lines, THRESHOLD, Axis("bits", from_zero=True), marks)


def _rand_chart(data: ReportData, merge_function: str, rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [_line(name, rows, value, style) for name, value, style in RAND_CURVES]
    runs = _line("norm. ERL", rows, "normalized_erl", "s2")
    lines += [runs] if np.isfinite(runs.y).any() else []
    chosen = _chosen_of(data, merge_function)
    marks = Marks(chosen=chosen["threshold"] if chosen else None)
    title = f"Rand and run length · {merge_function}"
    return line_chart(title, lines, THRESHOLD, Axis("0 to 1", from_zero=True), marks)


def _lut_lines(data: ReportData, value: str) -> list[Line]:
    named = zip(_by_merge_function(data.luts).items(), SERIES_STYLES, strict=False)
    lines = [_line(name, rows, value, style) for (name, rows), style in named]
    return [line for line in lines if np.isfinite(line.y).any()]


def _counts_chart(data: ReportData) -> list[str]:
    lines = _lut_lines(data, "segments")
    if not lines:
        return []
    chosen = chosen_lut(data)
    marks = Marks(chosen["threshold"], f"chosen {chosen['threshold']:g}") if chosen else Marks()
    return [line_chart("Segments", lines, THRESHOLD, Axis("number of segments", log=True), marks)]


def _steadiness_chart(data: ReportData) -> list[str]:
    """How much the partition changes from one threshold to the next: advice that needs no truth."""
    lines = _lut_lines(data, "change_to_next_bits")
    if not lines:
        return []
    chosen = chosen_lut(data)
    marks = Marks(chosen["threshold"]) if chosen else Marks()
    y_axis = Axis("bits to the next threshold", from_zero=True)
    return [line_chart("Steadiness, without truth (low: steady)", lines, THRESHOLD, y_axis, marks)]


def _size_chart(data: ReportData) -> list[str]:
    """The size histogram that segment counted."""
    segment = data.manifests.get("segment")
    if segment is None or not data.luts or "size_edges_vox" not in segment.facts:
        return []
    edges, counts = (np.array(segment.facts[name], np.int64) for name in ("size_edges_vox", "size_segments"))
    return [histogram("Segment sizes", edges, counts, Axis("voxels per segment", log=True), Axis("segments"))]


def loss_chart(curve: LossCurve) -> str:
    """Loss and validation loss of one training."""
    x = curve.iterations.astype(np.float64)
    lines = [Line(name, x, y, style) for (name, y), style in zip(curve.series.items(), SERIES_STYLES, strict=False)]
    positive = all(np.all(y[np.isfinite(y)] > 0) for y in curve.series.values())
    return line_chart(f"Loss · {curve.stage}", lines, Axis("iteration"), Axis("loss", log=positive))


def block_time_chart(blocks: StageBlocks | None) -> list[str]:
    """A histogram of the seconds of a stage's blocks; nothing for fewer than two, or without a map."""
    if blocks is None or blocks.map is None or blocks.seconds.size < 2:
        return []
    milliseconds = np.maximum(1000 * blocks.seconds, 1.0)
    edges = np.unique(np.geomspace(milliseconds.min(), milliseconds.max() + 1, TIME_BINS).astype(np.int64))
    edges[-1] += 1
    counts, _ = np.histogram(milliseconds, bins=edges)
    return [histogram("Time per block", edges, counts.astype(np.int64), Axis("milliseconds", log=True), Axis("blocks"))]
