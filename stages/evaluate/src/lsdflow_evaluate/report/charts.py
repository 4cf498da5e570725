"""The charts of the report, each drawn once from `ReportData`: line charts and histograms as inline SVGs.

No script, no font, no file beside the page. Colours are CSS classes of the page (`s0`, `s1`, ... `ink`), so that charts
follow its light and dark colours; each dot and bar has its value as a tooltip. All texts are escaped here. Every chart
is drawn in a box of 400 x 250 units::

    title
    legend
    y |        . chosen
      |  \\__/  :
      +--------:---- x
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_evaluate.report.data import LossCurve, ReportData, StageBlocks

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, FLOOR = 48, 386, 34, 208
MOST_POINTS = 300
MOST_DOTS = 40
TIME_BINS = 24
SERIES_STYLES = ("s0", "s1", "s2", "s3", "s4")
# Names of curves, their values in a row of scores.json, and styles.
VOI_CURVES = (("split", "voi_split", "s0"), ("merge", "voi_merge", "s1"), ("sum", "voi", "ink"))
RAND_CURVES = (
    ("split", "rand_split", "s0"),
    ("merge", "rand_merge", "s1"),
    ("adapted error", "adapted_rand_error", "ink"),
    ("norm. ERL", "normalized_erl", "s2"),
)

Floats = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Line:
    """One curve: x and y (n,), NaN = no value there; `style` is the CSS class of its colour."""

    name: str
    x: Floats
    y: Floats
    style: str


@dataclass(frozen=True)
class Axis:
    """Label and scale of one axis."""

    label: str
    log: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class Marks:
    """A vertical line at `chosen` with its text, and a horizontal one at `limit` with its text."""

    chosen: float | None = None
    chosen_text: str = ""
    limit: float | None = None
    limit_text: str = ""


THRESHOLD = Axis("threshold   (merge more →)")


@dataclass(frozen=True)
class Charts:
    """Finished SVGs: scores by threshold; segments and their change by threshold; sizes of segments; losses and
    seconds per block, by stage. Empty where there are no values."""

    quality: tuple[str, ...]
    counts: tuple[str, ...]
    sizes: tuple[str, ...]
    losses: Mapping[str, str]
    block_times: Mapping[str, str]

    def of_stage(self, stage: str) -> tuple[str, ...]:
        """The charts on the page of one stage."""
        own = {"segment": (*self.counts, *self.sizes), "evaluate": self.quality}.get(stage, ())
        return (*own, *(charts[stage] for charts in (self.losses, self.block_times) if stage in charts))


def draw_charts(data: ReportData) -> Charts:
    """All charts of the report."""
    times = {stage: block_time_chart(blocks) for stage, blocks in data.blocks.items()}
    return Charts(
        quality=tuple(_quality(data)),
        counts=(
            *_lut_chart(data, "Segments", "segments", Axis("number of segments", log=True), text="chosen {:g}"),
            # Needs no ground truth: thresholds are good where the segmentation hardly changes.
            *_lut_chart(
                data,
                "Change to the next threshold (low: stable)",
                "change_to_next_bits",
                Axis("bits to the next threshold", from_zero=True),
            ),
        ),
        sizes=tuple(_sizes(data)),
        losses={curve.stage: loss_chart(curve) for curve in data.losses},
        block_times={stage: chart for stage, chart in times.items() if chart},
    )


def _quality(data: ReportData) -> list[str]:
    """VOI, then Rand and run length, of each merge function."""
    made = []
    for name, rows in _by_merge_function(data.scores.get("thresholds", ())).items():
        score = data.chosen_score
        chosen = score if score and score["merge_function"] == name else None
        at = chosen["threshold"] if chosen else None
        text = f"chosen {chosen['threshold']:g}: {chosen['voi']:.3f}" if chosen else ""
        marks = Marks(at, text, data.voi_limit, f"< {data.voi_limit:g}")
        voi = _lines_of(rows, VOI_CURVES)
        made.append(line_chart(f"VOI · {name}", voi, THRESHOLD, Axis("bits", from_zero=True), marks))
        y_axis = Axis("0 to 1", from_zero=True)
        rand = _lines_of(rows, RAND_CURVES)
        made.append(line_chart(f"Rand and run length · {name}", rand, THRESHOLD, y_axis, Marks(at)))
    return made


def _by_merge_function(rows: Rows) -> dict[str, Rows]:
    """Rows of each merge function by rising threshold."""
    names = dict.fromkeys(row["merge_function"] for row in rows)
    ordered = sorted(rows, key=lambda row: row["threshold"])
    return {name: [row for row in ordered if row["merge_function"] == name] for name in names}


def _lines_of(rows: Rows, curves: Sequence[tuple[str, str, str]]) -> list[Line]:
    """Curves by threshold; NaN where a value is not known."""
    x = np.array([row["threshold"] for row in rows])
    values = ((name, [row.get(value) for row in rows], style) for name, value, style in curves)
    return [Line(name, x, np.array([np.nan if y is None else y for y in ys]), style) for name, ys, style in values]


def _lut_chart(data: ReportData, title: str, value: str, y_axis: Axis, text: str = "") -> list[str]:
    """A value of the lookup tables by threshold, a curve for each merge function; nothing if it is not known."""
    named = zip(_by_merge_function(data.luts).items(), SERIES_STYLES, strict=False)
    lines = [line for (name, rows), style in named for line in _lines_of(rows, [(name, value, style)])]
    lines = [line for line in lines if np.isfinite(line.y).any()]
    chosen = data.chosen_lut
    marks = Marks(chosen["threshold"], text.format(chosen["threshold"])) if chosen else Marks()
    return [line_chart(title, lines, THRESHOLD, y_axis, marks)] if lines else []


def _sizes(data: ReportData) -> list[str]:
    """The histogram of sizes that segment counted."""
    facts = data.segment_sizes
    if facts is None:
        return []
    edges, counts = (np.array(facts[name], np.int64) for name in ("size_edges_vox", "size_segments"))
    return [histogram("Segment sizes", edges, counts, Axis("voxels per segment", log=True), Axis("segments"))]


def loss_chart(curve: LossCurve) -> str:
    """Loss and validation loss of one training."""
    x = curve.iterations.astype(np.float64)
    lines = [Line(name, x, y, style) for (name, y), style in zip(curve.series.items(), SERIES_STYLES, strict=False)]
    positive = all(np.all(y[np.isfinite(y)] > 0) for y in curve.series.values())
    return line_chart(f"Loss · {curve.stage}", lines, Axis("iteration"), Axis("loss", log=positive))


def block_time_chart(blocks: StageBlocks) -> str:
    """A histogram of the seconds of a stage's blocks; empty for fewer than two, or without a map."""
    if blocks.map is None or blocks.seconds.size < 2:
        return ""
    milliseconds = np.maximum(1000 * blocks.seconds, 1.0)
    edges = np.unique(np.geomspace(milliseconds.min(), milliseconds.max() + 1, TIME_BINS).astype(np.int64))
    edges[-1] += 1
    counts, _ = np.histogram(milliseconds, bins=edges)
    return histogram("Time per block", edges, counts.astype(np.int64), Axis("milliseconds", log=True), Axis("blocks"))


def line_chart(title: str, lines: Sequence[Line], x_axis: Axis, y_axis: Axis, marks: Marks | None = None) -> str:
    """The SVG of some curves over one x axis; a sentence in place of the curves if there is no finite value."""
    marks = marks or Marks()
    drawn = [line for line in (_finite(line, x_axis, y_axis) for line in lines) if line.x.size]
    if not drawn:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", "middle", "quiet")])
    xs = np.concatenate([line.x for line in drawn] + ([[marks.chosen]] if marks.chosen is not None else []))
    ys = np.concatenate([line.y for line in drawn] + ([[marks.limit]] if marks.limit is not None else []))
    x_scale, y_scale = _Scale.of(xs, x_axis, LEFT, RIGHT, tight=True), _Scale.of(ys, y_axis, FLOOR, TOP + 14)
    under, over = _marks(marks, x_scale, y_scale)
    curves = [part for line in drawn for part in _curve(line, x_scale, y_scale)]
    return _frame(title, [*_axes(x_scale, y_scale, x_axis, y_axis), *under, *curves, *over, *_legend(drawn)])


def histogram(title: str, edges: NDArray[np.int64], counts: NDArray[np.int64], x_axis: Axis, y_axis: Axis) -> str:
    """The SVG of bars between `edges` (n + 1,) with heights `counts` (n,)."""
    if counts.size == 0 or counts.sum() == 0:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", "middle", "quiet")])
    bounds = np.maximum(edges.astype(np.float64), 1.0 if x_axis.log else -np.inf)
    x_scale = _Scale.of(bounds, x_axis, LEFT, RIGHT, tight=True)
    y_scale = _Scale.of(counts.astype(np.float64), Axis("", from_zero=True), FLOOR, TOP)
    parts = _axes(x_scale, y_scale, x_axis, y_axis)
    for low, high, count in zip(bounds[:-1], bounds[1:], counts, strict=True):
        if count > 0 and high > low:
            left, right, top = x_scale.at(low), x_scale.at(high), y_scale.at(float(count))
            gap = min(1.0, (right - left) / 6)
            place = f'x="{left + gap:.1f}" y="{top:.1f}"'
            size = f'width="{right - left - 2 * gap:.1f}" height="{FLOOR - top:.1f}"'
            note = f"<title>{short(low)} to {short(high)}: {int(count)}</title>"
            parts.append(f'<rect class="bar" {place} {size} rx="1.5">{note}</rect>')
    return _frame(title, parts)


def short(value: float) -> str:
    """A number as people read it on an axis: 0.25, 12, 3.4k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def thinned(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Means of neighbouring points where there are more than `most`: a long training stays readable and small."""
    if x.size <= most:
        return x, y
    groups = np.array_split(np.arange(x.size), most)
    return np.array([x[g].mean() for g in groups]), np.array([y[g].mean() for g in groups])


def _finite(line: Line, x_axis: Axis, y_axis: Axis) -> Line:
    keep = np.isfinite(line.x) & np.isfinite(line.y)
    keep &= (line.x > 0) if x_axis.log else True
    keep &= (line.y > 0) if y_axis.log else True
    return Line(line.name, *thinned(line.x[keep], line.y[keep]), line.style)


@dataclass(frozen=True)
class _Scale:
    """Values from `low` to `high` on the units from `start` to `stop`."""

    low: float
    high: float
    log: bool
    start: float
    stop: float
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Floats, axis: Axis, start: float, stop: float, *, tight: bool = False) -> _Scale:
        """The scale of these values, with some room at its ends unless it is `tight`."""
        low, high = float(values.min()), float(values.max())
        low = min(low, 0.0) if axis.from_zero else low
        if high <= low:
            low, high = (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)
        if axis.log:
            low, high = (low, high) if tight else (low / 1.15, high * 1.15)
            return cls(low, high, True, start, stop, _log_ticks(low, high))
        power = 10.0 ** math.floor(math.log10((high - low) / 4))
        step = next(f * power for f in (1.0, 2.0, 5.0, 10.0) if (high - low) / (f * power) <= 5)
        if not tight:
            low, high = math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        return cls(low, high, False, start, stop, tuple(round(i * step, 12) for i in numbers))

    def at(self, value: float) -> float:
        """The unit of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    ticks = tuple(f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high)
    return ticks[:: max(1, math.ceil(len(ticks) / 7))]


def _axes(x_scale: _Scale, y_scale: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for y, text in ((y_scale.at(tick), short(tick)) for tick in y_scale.ticks):
        parts += [_line("grid", (LEFT, RIGHT), (y, y)), _text(LEFT - 6, y + 3.5, text, "end", "tick")]
    for x, text in ((x_scale.at(tick), short(tick)) for tick in x_scale.ticks):
        parts += [_line("axis", (x, x), (FLOOR, FLOOR + 4)), _text(x, FLOOR + 15, text, "middle", "tick")]
    parts.append(_line("axis", (LEFT, RIGHT), (FLOOR, FLOOR)))
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 8, x_axis.label, "middle", "label"))
    middle = (TOP + FLOOR) / 2
    parts.append(_text(12, middle, y_axis.label, "middle", "label", f' transform="rotate(-90 12 {middle})"'))
    return parts


def _marks(marks: Marks, x_scale: _Scale, y_scale: _Scale) -> tuple[list[str], list[str]]:
    """Lines under the curves, and their texts, over them."""
    under, over = [], []
    if marks.limit is not None:
        y = y_scale.at(marks.limit)
        under.append(_line("limit", (LEFT, RIGHT), (y, y)))
        over.append(_text(RIGHT, y - 4, marks.limit_text, "end", "limit-text"))
    if marks.chosen is not None:
        x = x_scale.at(marks.chosen)
        under.append(_line("chosen", (x, x), (TOP + 4, FLOOR)))
        shift, anchor = (-5, "end") if x > (LEFT + RIGHT) / 2 else (5, "start")
        over.append(_text(x + shift, TOP + 13, marks.chosen_text, anchor, "chosen-text"))
    return under, over


def _curve(line: Line, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    points = [(x_scale.at(float(x)), y_scale.at(float(y))) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline class="line {line.style}" points="{path}"/>']
    if len(points) <= MOST_DOTS:
        for (px, py), x, y in zip(points, line.x, line.y, strict=True):
            note = f"<title>{escape(line.name)}: {y:.4g} at {x:.4g}</title>"
            parts.append(f'<circle class="dot {line.style}" cx="{px:.1f}" cy="{py:.1f}" r="2.4">{note}</circle>')
    return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    parts, x = [], float(LEFT)
    for line in lines:
        parts.append(_line(f"line {line.style}", (x, x + 14), (TOP - 4, TOP - 4)))
        parts.append(_text(x + 18, TOP, line.name, "start", "legend"))
        x += 34 + 6.0 * len(line.name)
    return parts


def _line(style: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    return f'<line class="{style}" x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="{y[0]:.1f}" y2="{y[1]:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str, more: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _frame(title: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
    return "".join([head, _text(0, 13, title, "start", "title"), *parts, "</svg>"])
