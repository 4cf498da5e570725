"""The plot of a merged sweep as SVG: a score along one axis, with a colour for each combination of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lsdflow_launch.sweep.merge import Mean, Merged

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 380, 64, 260, 30, 56
# Colours that colour-blind people can distinguish (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LOGARITHMIC_FROM = 100.0
LONGEST_LABEL = 34
TICKS = 5


@dataclass(frozen=True)
class _Scale:
    """A mapping from values to pixels."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value in the picture, in pixels."""
        low, high, here = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        share = 0.5 if high == low else (here - low) / (high - low)
        return self.begin + share * (self.end - self.begin)


def plot_svg(merged: Merged) -> str:
    """Return a plot of means as lines (hollow if partial) and runs as small dots; a note if no run has the score."""
    metric = merged.plan.metric
    shown = [mean for mean in merged.means if mean.mean(metric) is not None]
    if not shown:
        return _frame([_text(LEFT, HEIGHT / 2, f"no run has a score named {metric} yet", "start")])
    axis = _axis_along(merged)
    labels = merged.plan.axes.get(axis, ("",))
    positions = _positions(labels)
    values = [row.scores[metric] for mean in shown for row in mean.rows if metric in row.scores]
    y = _Scale(min(values), max(values), HEIGHT - BOTTOM - 12, TOP + 12)
    logarithmic = min(positions) > 0 and max(positions) / min(positions) >= LOGARITHMIC_FROM
    x = _Scale(min(positions), max(positions), LEFT + 30, WIDTH - RIGHT - 20, logarithmic)
    places = {label: x.at(position) for label, position in zip(labels, positions, strict=True)}
    parts = [*_axes(axis, metric, places, y)]
    series: dict[str, list[Mean]] = {}
    for mean in shown:
        others = (f"{a.rpartition('.')[2]} {label}" for a, label in mean.at.items() if a != axis)
        series.setdefault(", ".join(others), []).append(mean)
    for number, (name, means) in enumerate(series.items()):
        points = [(places[mean.at.get(axis, "")], y, mean) for mean in means]
        parts += _series(points, metric, COLOURS[number % len(COLOURS)], line=_are_numbers(labels))
        if name:
            parts += _legend(number, name)
    return _frame(parts)


def _axis_along(merged: Merged) -> str:
    """Return the first numeric axis with more than one value, else the first such axis; "" if there is none."""
    long = [axis for axis in merged.kept_axes if len(merged.plan.axes[axis]) > 1]
    return next((axis for axis in long if _are_numbers(merged.plan.axes[axis])), long[0] if long else "")


def _are_numbers(labels: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(label)) for label in labels)
    except ValueError:
        return False


def _positions(labels: Sequence[str]) -> list[float]:
    """Return the labels as numbers if all are numbers, otherwise 1, 2, 3, ..."""
    return [float(label) if _are_numbers(labels) else float(number) for number, label in enumerate(labels, 1)]


def _axes(axis: str, metric: str, places: dict[str, float], y: _Scale) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [_line(LEFT, floor, WIDTH - RIGHT, floor, "#888"), _line(LEFT, TOP, LEFT, floor, "#888")]
    for tick in range(TICKS if y.high > y.low else 1):
        value = y.low + (y.high - y.low) * tick / (TICKS - 1)
        parts += [_line(LEFT - 4, y.at(value), LEFT, y.at(value), "#888")]
        parts += [_text(LEFT - 8, y.at(value) + 4, f"{value:.4g}", "end")]
    for label, place in places.items():
        parts += [_line(place, floor, place, floor + 4, "#888"), _text(place, floor + 18, _short(label), "middle")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, "middle"))
    parts.append(_text(LEFT, TOP - 12, metric, "middle"))
    return parts


def _series(points: Sequence[tuple[float, _Scale, Mean]], metric: str, colour: str, *, line: bool) -> list[str]:
    # Labels that are not numbers have no values between them, so no line is drawn.
    path = " ".join(f"{x:.1f},{y.at(mean.mean(metric) or 0.0):.1f}" for x, y, mean in points if line)
    parts = [f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>']
    for x, y, mean in points:
        for row in mean.rows if len(mean.rows) > 1 else ():
            if metric in row.scores:
                at = y.at(row.scores[metric])
                parts.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="2" fill="{colour}" fill-opacity="0.45"/>')
        value = mean.mean(metric) or 0.0
        fill = colour if mean.state == "complete" else "#fff"
        note = f"{value:.4g}, {mean.state}, {mean.done} of {len(mean.rows)} runs"
        circle = f'<circle class="{mean.state}" cx="{x:.1f}" cy="{y.at(value):.1f}" r="4" fill="{fill}"'
        parts.append(f'{circle} stroke="{colour}"><title>{escape(note)}</title></circle>')
    return parts


def _legend(number: int, name: str) -> list[str]:
    y, x = TOP + 10 + 18 * number, WIDTH - RIGHT + 10
    colour = COLOURS[number % len(COLOURS)]
    return [_line(x, y - 4, x + 16, y - 4, colour), _text(x + 22, y, _short(name), "start")]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return f'{head} font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
