"""Line charts and histograms as inline SVG: no script, no font, no file beside the page.

Colours are CSS classes of the page (`s0`, `s1`, ... `ink`), so charts follow its light and dark colours. All texts are
escaped here; the page includes the finished SVG. Every chart is drawn in a box of 400 x 250 units::

    title
    legend
    y |        . chosen
      |  \\__/  :
      +--------:---- x
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 34, 42
MOST_POINTS = 300
MOST_DOTS = 40

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    log: bool
    start: float
    stop: float
    ticks: tuple[float, ...] = field(default=())

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


def line_chart(title: str, lines: Sequence[Line], x_axis: Axis, y_axis: Axis, marks: Marks | None = None) -> str:
    """The SVG of some curves over one x axis; a sentence in place of the curves if there is no finite value."""
    marks = marks or Marks()
    shown = [_finite(line, x_axis, y_axis) for line in lines]
    shown = [line for line in shown if line.x.size]
    if not shown:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", "middle", "quiet")])
    xs = np.concatenate([line.x for line in shown] + ([[marks.chosen]] if marks.chosen is not None else []))
    ys = np.concatenate([line.y for line in shown] + ([[marks.limit]] if marks.limit is not None else []))
    x_scale = _scale(xs, x_axis, LEFT, WIDTH - RIGHT, tight=True)
    y_scale = _scale(ys, y_axis, HEIGHT - BOTTOM, TOP + 14, tight=False)
    parts = [*_axes(x_scale, y_scale, x_axis, y_axis), *_mark_lines(marks, x_scale, y_scale)]
    for line in shown:
        parts += _curve(line, x_scale, y_scale)
    return _frame(title, [*parts, *_mark_texts(marks, x_scale, y_scale), *_legend(shown)])


def histogram(title: str, edges: NDArray[np.int64], counts: NDArray[np.int64], x_axis: Axis, y_axis: Axis) -> str:
    """The SVG of bars between `edges` (n + 1,) with heights `counts` (n,)."""
    if counts.size == 0 or counts.sum() == 0:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", "middle", "quiet")])
    bounds = np.maximum(edges.astype(np.float64), 1.0) if x_axis.log else edges.astype(np.float64)
    x_scale = _scale(bounds, x_axis, LEFT, WIDTH - RIGHT, tight=True)
    y_scale = _scale(counts.astype(np.float64), Axis("", from_zero=True), HEIGHT - BOTTOM, TOP, tight=False)
    parts = _axes(x_scale, y_scale, x_axis, y_axis)
    for low, high, count in zip(bounds[:-1], bounds[1:], counts, strict=True):
        if count > 0 and high > low:
            parts.append(_bar(x_scale.at(low), x_scale.at(high), y_scale.at(float(count)), (low, high, int(count))))
    return _frame(title, parts)


def _bar(left: float, right: float, top: float, values: tuple[float, float, int]) -> str:
    low, high, count = values
    gap = min(1.0, (right - left) / 6)
    note = f"<title>{short(low)} to {short(high)}: {count}</title>"
    size = (
        f'x="{left + gap:.1f}" y="{top:.1f}" width="{right - left - 2 * gap:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"'
    )
    return f'<rect class="bar" {size} rx="1.5">{note}</rect>'


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
    x, y = thinned(line.x[keep], line.y[keep])
    return Line(line.name, x, y, line.style)


def _scale(values: Floats, axis: Axis, start: float, stop: float, *, tight: bool) -> _Scale:
    low, high = float(values.min()), float(values.max())
    if axis.from_zero:
        low = min(low, 0.0)
    if high <= low:
        low, high = (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)
    if axis.log:
        low, high = (low, high) if tight else (low / 1.15, high * 1.15)
        return _Scale(low, high, True, start, stop, _log_ticks(low, high))
    step = _nice_step(high - low)
    if not tight:
        low, high = math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step
    first = math.ceil(low / step - 1e-9)
    ticks = tuple(round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1))
    return _Scale(low, high, False, start, stop, ticks)


def _nice_step(span: float) -> float:
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(f * power for f in (1.0, 2.0, 5.0, 10.0) if span / (f * power) <= 5)


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    ticks = tuple(f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high)
    return ticks[:: max(1, math.ceil(len(ticks) / 7))]


def _axes(x_scale: _Scale, y_scale: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for tick in y_scale.ticks:
        y = y_scale.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 3.5, short(tick), "end", "tick"))
    for tick in x_scale.ticks:
        x, floor = x_scale.at(tick), HEIGHT - BOTTOM
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(_text(x, floor + 15, short(tick), "middle", "tick"))
    floor = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_axis.label, "middle", "label"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {middle})"'
    parts.append(f'<text class="label" x="12" y="{middle}" text-anchor="middle" {turned}>{escape(y_axis.label)}</text>')
    return parts


def _mark_lines(marks: Marks, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    parts = []
    if marks.limit is not None:
        y = y_scale.at(marks.limit)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if marks.chosen is not None:
        x = x_scale.at(marks.chosen)
        parts.append(f'<line class="chosen" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 4}" y2="{HEIGHT - BOTTOM}"/>')
    return parts


def _mark_texts(marks: Marks, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    """The texts of the marks, drawn over the curves."""
    parts = []
    if marks.limit is not None:
        parts.append(_text(WIDTH - RIGHT, y_scale.at(marks.limit) - 4, marks.limit_text, "end", "limit-text"))
    if marks.chosen is not None:
        x = x_scale.at(marks.chosen)
        shift, anchor = (-5, "end") if x > (LEFT + WIDTH - RIGHT) / 2 else (5, "start")
        parts.append(_text(x + shift, TOP + 13, marks.chosen_text, anchor, "chosen-text"))
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
        parts.append(f'<line class="line {line.style}" x1="{x}" x2="{x + 14}" y1="{TOP - 4}" y2="{TOP - 4}"/>')
        parts.append(_text(x + 18, TOP, line.name, "start", "legend"))
        x += 34 + 6.0 * len(line.name)
    return parts


def _text(x: float, y: float, text: str, anchor: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
    return "".join([head, _text(0, 13, title, "start", "title"), *parts, "</svg>"])
