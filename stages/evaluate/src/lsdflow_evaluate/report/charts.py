"""The charts of the report: `line_chart` draws curves over two axes as inline SVG, and all charts are drawn by it.

No script, no font, no file beside the page. Colours are CSS classes of the page (`s0`, `s1`, ... `ink`), so that charts
follow its light and dark colours; each dot has its value as a tooltip. All texts are escaped here. Every chart is drawn
in a box of 400 x 250 units::

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

from lsdflow_evaluate.report.data import ReportData

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, FLOOR = 48, 386, 34, 208
MOST_POINTS = 300
MOST_DOTS = 40
STYLES = ("s0", "s1", "s2", "s3", "s4")
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


THRESHOLD, BITS = Axis("threshold   (merge more →)"), Axis("bits", from_zero=True)


def draw_charts(data: ReportData) -> list[str]:
    """Scores of each merge function by threshold; segments and their change by threshold; sizes of segments; losses.
    What has no values is left out."""
    charts: list[str] = []
    score, lut = data.chosen_score, data.chosen_lut
    for name, rows in _by_merge_function(data.scores.get("thresholds", ())).items():
        chosen = score["threshold"] if score and score["merge_function"] == name else None
        voi, rand = _lines_of(rows, VOI_CURVES), _lines_of(rows, RAND_CURVES)
        charts.append(line_chart(f"VOI · {name}", voi, THRESHOLD, BITS, chosen, data.voi_limit))
        title = f"Rand and run length · {name}"
        charts.append(line_chart(title, rand, THRESHOLD, Axis("0 to 1", from_zero=True), chosen))
    for title, value, axis in (
        ("Segments", "segments", Axis("number of segments", log=True)),
        # Needs no ground truth: thresholds are good where the segmentation hardly changes.
        ("Change to the next threshold (low: stable)", "change_to_next_bits", BITS),
    ):
        named = zip(_by_merge_function(data.luts).items(), STYLES, strict=False)
        lines = [line for (name, rows), style in named for line in _lines_of(rows, [(name, value, style)])]
        if any(np.isfinite(line.y).any() for line in lines):
            charts.append(line_chart(title, lines, THRESHOLD, axis, lut["threshold"] if lut else None))
    if (facts := data.segment_sizes) is not None:
        edges = np.array(facts["size_edges_vox"], np.float64)
        middles, counts = np.sqrt(edges[:-1] * edges[1:]), np.array(facts["size_segments"], np.float64)
        sizes = [Line("segments", middles, counts, "s0")]
        charts.append(line_chart("Segment sizes", sizes, Axis("voxels", log=True), Axis("segments", from_zero=True)))
    for curve in data.losses:
        series = zip(curve.series.items(), STYLES, strict=False)
        lines = [Line(name, curve.iterations.astype(np.float64), y, style) for (name, y), style in series]
        positive = all(np.all(line.y[np.isfinite(line.y)] > 0) for line in lines)
        charts.append(line_chart(f"Loss · {curve.stage}", lines, Axis("iteration"), Axis("loss", log=positive)))
    return charts


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


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_axis: Axis,
    y_axis: Axis,
    chosen: float | None = None,
    limit: float | None = None,
) -> str:
    """The SVG of some curves over one x axis; a sentence in place of the curves if there is no finite value.

    chosen: a vertical line at this x; limit: a horizontal one at this y.
    """
    drawn = [line for line in (_finite(line, x_axis, y_axis) for line in lines) if line.x.size]
    if not drawn:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", "middle", "quiet")])
    xs = np.concatenate([line.x for line in drawn] + ([[chosen]] if chosen is not None else []))
    ys = np.concatenate([line.y for line in drawn] + ([[limit]] if limit is not None else []))
    x_scale, y_scale = _Scale.of(xs, x_axis, LEFT, RIGHT, tight=True), _Scale.of(ys, y_axis, FLOOR, TOP + 14)
    marks: list[str] = []
    texts: list[str] = []
    if limit is not None:
        y = y_scale.at(limit)
        marks.append(_line("limit", (LEFT, RIGHT), (y, y)))
        texts.append(_text(RIGHT, y - 4, f"< {limit:g}", "end", "limit-text"))
    if chosen is not None:
        x = x_scale.at(chosen)
        marks.append(_line("chosen", (x, x), (TOP + 4, FLOOR)))
        shift, anchor = (-5, "end") if x > (LEFT + RIGHT) / 2 else (5, "start")
        texts.append(_text(x + shift, TOP + 13, f"chosen {chosen:g}", anchor, "chosen-text"))
    curves = [part for line in drawn for part in _curve(line, x_scale, y_scale)]
    return _frame(title, [*_axes(x_scale, y_scale, x_axis, y_axis), *marks, *curves, *texts, *_legend(drawn)])


def short(value: float) -> str:
    """A number as people read it on an axis: 0.25, 12, 3.4k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _finite(line: Line, x_axis: Axis, y_axis: Axis) -> Line:
    """The points that can be drawn; of many, means of neighbours: a long training stays readable and small."""
    keep = np.isfinite(line.x) & np.isfinite(line.y)
    keep &= (line.x > 0) if x_axis.log else True
    keep &= (line.y > 0) if y_axis.log else True
    x, y = line.x[keep], line.y[keep]
    if x.size > MOST_POINTS:
        x, y = (np.array([part.mean() for part in np.array_split(values, MOST_POINTS)]) for values in (x, y))
    return Line(line.name, x, y, line.style)


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
