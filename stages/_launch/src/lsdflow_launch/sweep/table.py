"""A merged sweep for reading: CSV of all runs and of the means, Markdown and HTML, and a plot as SVG.

The plot has a score along one axis, with a colour for each combination of the others.
"""

from __future__ import annotations

import csv
import html
import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.files import write_if_changed
from lsdflow_launch.sweep.merge import FIRST_METRICS, Mean, Merged, Row

LISTED_METRICS = (*FIRST_METRICS[:4], "threshold")
# Headings of the scores in tables; VOI is in bits.
HEADINGS = {
    "voi": "VOI [bits]",
    "voi_split": "VOI split [bits]",
    "voi_merge": "VOI merge [bits]",
    "adapted_rand_error": "adapted Rand error",
}
SECONDS = "seconds of all stages"
STATES = "State: complete = all runs of a line are done, partial = some are, failed or missing = none is."
_STYLE = (
    "body{font:15px/1.5 sans-serif;margin:2em auto;padding:0 1em;max-width:76em;color:#222}.wide{overflow-x:auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}"
    "td{white-space:nowrap}.partial,.failed,.missing{color:#b00}.best{font-weight:bold;background:#eef6ee}"
    "svg{display:block;width:100%;min-width:36em;max-width:60em}"
)
Cells = list[str]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 380, 64, 260, 30, 56
# Colours that colour-blind people can distinguish (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LOGARITHMIC_FROM = 100.0
LONGEST_LABEL = 34
TICKS = 4


def write_merged(merged: Merged, folder: Path, title: str = "Sweep") -> list[Path]:
    """Write runs.csv, means.csv, table.md, plot.svg and index.html; return their paths."""
    plot = plot_svg(merged)
    texts = {
        "runs.csv": _csv(_run_columns(merged), [_run_cells(row, merged) for row in merged.rows]),
        "means.csv": _csv(_exact_columns(merged), [_exact_cells(mean, merged) for mean in merged.means]),
        "table.md": markdown(merged, title),
        "plot.svg": plot,
        "index.html": _page(merged, plot, title, folder),
    }
    for name, text in texts.items():
        write_if_changed(folder / name, text.encode())
    return [folder / name for name in texts]


def summary(merged: Merged) -> str:
    """Return '29 of 32 runs done, 1 failed, 2 missing', and the best complete mean."""
    counts = merged.counts
    parts = [f"{counts.pop('done')} of {len(merged.rows)} runs done"]
    parts += [f"{count} {status}" for status, count in counts.items() if count]
    if merged.without_metric:
        parts.append(f"{merged.without_metric} without {merged.plan.metric}")
    best = merged.best
    if best is not None:
        at = ", ".join(f"{axis} = {label}" for axis, label in best.at.items())
        parts.append(f"lowest {merged.plan.metric}: {best.mean(merged.plan.metric):.4g}" + (f" at {at}" if at else ""))
    return ", ".join(parts)


def markdown(merged: Merged, title: str = "Sweep") -> str:
    """Return the means as a table, and below it every run that is not done, with the reason."""
    head, rows = _mean_columns(merged), [_mean_cells(mean) for mean in merged.means]
    lines = [f"# {title}: {summary(merged)}", "", *_markdown_table(head, rows)]
    if merged.plan.means_over:
        lines += ["", _means_note(merged)]
    if open_ := [_open_cells(row) for row in merged.rows if row.status != "done"]:
        lines += ["", "Not done:", "", *_markdown_table(["run", "status", "stage", "why"], open_)]
    return "\n".join(lines) + "\n"


def _means_note(merged: Merged) -> str:
    return f"Means over {', '.join(merged.plan.means_over)}; ± is the standard deviation over runs."


def _page(merged: Merged, plot: str, title: str, folder: Path) -> str:
    best = merged.best
    rows = [_html_row(mean, folder, is_best=mean == best) for mean in merged.means]
    open_ = [_open_cells(row) for row in merged.rows if row.status != "done"]
    below = f"<h2>Not done</h2>{_html_table(['run', 'status', 'stage', 'why'], open_)}" if open_ else ""
    name = HEADINGS.get(merged.plan.metric, merged.plan.metric)
    notes = [f"The line with the lowest {name} is marked.", STATES]
    if merged.plan.means_over:
        notes.append(_means_note(merged))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f'<p>{html.escape(summary(merged))}</p><div class="wide">{plot}</div><div class="wide"><table>'
        f"<tr>{_html_cells(_mean_columns(merged), 'th')}</tr>{''.join(rows)}</table></div>"
        f"<p>{html.escape(' '.join(notes))}</p>{below}</html>\n"
    )


def _html_row(mean: Mean, folder: Path, *, is_best: bool) -> str:
    """Return the row of a mean: the best one is marked, and a single run that is done is linked to its report."""
    result = mean.rows[0].result if len(mean.rows) == 1 else None
    link = ""
    if result is not None and result.report is not None:
        address = html.escape(quote(os.path.relpath(result.report, folder)))
        link = f'<td><a href="{address}">report</a></td>'
    flag = ' class="best"' if is_best else ""
    return f"<tr{flag}>{_html_cells(_mean_cells(mean), 'td')}{link}</tr>"


def _run_columns(merged: Merged) -> Cells:
    seconds = [f"seconds {stage}" for stage in _stages(merged)]
    return ["run", *merged.plan.axes, "status", "exit code", "failed stage", "error", *merged.metrics, *seconds, "host"]


def _run_cells(row: Row, merged: Merged) -> Cells:
    result, at = row.result, [row.run.at[axis] for axis in merged.plan.axes]
    if result is None:
        return [row.run.name, *at, row.status]
    scores = [_exact(row.scores.get(metric)) for metric in merged.metrics]
    seconds = [_exact(result.seconds.get(stage)) for stage in _stages(merged)]
    why = str(result.error.get("what", ""))
    ended = [row.status, str(result.exit_code), result.failed_stage, why]
    return [row.run.name, *at, *ended, *scores, *seconds, result.host]


def _exact_columns(merged: Merged) -> Cells:
    numbers = [f"{metric} {what}" for metric in merged.metrics for what in ("mean", "standard deviation")]
    return [*merged.kept_axes, *numbers, "done", "runs", "state"]


def _exact_cells(mean: Mean, merged: Merged) -> Cells:
    numbers = [_exact(value) for m in merged.metrics for value in (mean.mean(m), mean.deviation(m))]
    return [*mean.at.values(), *numbers, str(mean.done), str(len(mean.rows)), mean.state]


def _mean_columns(merged: Merged) -> Cells:
    return [*merged.kept_axes, *(HEADINGS.get(name, name) for name in LISTED_METRICS), SECONDS, "runs", "state"]


def _mean_cells(mean: Mean) -> Cells:
    numbers = []
    for metric in LISTED_METRICS:
        value, deviation = mean.mean(metric), mean.deviation(metric)
        text = "" if value is None else f"{value:.4g}"
        numbers.append(text if deviation is None else f"{text} ± {deviation:.2g}")
    seconds = "" if mean.seconds is None else f"{mean.seconds:.0f}"
    return [*mean.at.values(), *numbers, seconds, f"{mean.done} of {len(mean.rows)}", mean.state]


def _open_cells(row: Row) -> Cells:
    result = row.result
    why = "" if result is None else str(result.error.get("what", "")) or f"exit code {result.exit_code}"
    return [row.run.name, row.status, result.failed_stage if result else "", why]


def _stages(merged: Merged) -> list[str]:
    found = {stage for row in merged.rows if row.result for stage in row.result.seconds}
    return [stage for stage in STAGES if stage in found]


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)


def _csv(head: Cells, rows: Iterable[Cells]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([*row, *[""] * (len(head) - len(row))] for row in rows)
    return text.getvalue()


def _markdown_table(head: Cells, rows: Sequence[Cells]) -> list[str]:
    def line(cells: Cells) -> str:
        """Return one row in Markdown, with `|` escaped."""
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]


def _html_table(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [_html_cells(head, "th"), *(_html_cells(row, "td") for row in rows)]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _html_cells(cells: Cells, kind: str) -> str:
    """Return the cells of one row in HTML; kind: `th` or `td`."""

    def cell(text: str) -> str:
        """Return one cell; states that need attention get a CSS class."""
        flag = f' class="{text}"' if text in ("partial", "failed", "missing") else ""
        # A heading such as agglomerate.merge_functions may be broken after the point.
        shown = html.escape(text).replace(".", ".<wbr>") if kind == "th" else html.escape(text)
        return f"<{kind}{flag}>{shown}</{kind}>"

    return "".join(map(cell, cells))


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
    scored = [mean for mean in merged.means if mean.mean(metric) is not None]
    if not scored:
        return _frame([_svg_text(LEFT, HEIGHT / 2, f"no run has a score named {metric} yet", "start")])
    axis = _axis_along(merged)
    labels = merged.plan.axes.get(axis, ("",))
    positions = _positions(labels)
    values = [row.scores[metric] for mean in scored for row in mean.rows if metric in row.scores]
    y = _Scale(min(values), max(values), HEIGHT - BOTTOM - 12, TOP + 12)
    logarithmic = min(positions) > 0 and max(positions) / min(positions) >= LOGARITHMIC_FROM
    x = _Scale(min(positions), max(positions), LEFT + 30, WIDTH - RIGHT - 20, logarithmic)
    places = {label: x.at(position) for label, position in zip(labels, positions, strict=True)}
    parts = [*_axes(axis, metric, places, y)]
    series: dict[str, list[Mean]] = {}
    for mean in scored:
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
    parts = [_svg_line(LEFT, floor, WIDTH - RIGHT, floor, "#888"), _svg_line(LEFT, TOP, LEFT, floor, "#888")]
    for value in round_ticks(y.low, y.high):
        parts += [_svg_line(LEFT - 4, y.at(value), LEFT, y.at(value), "#888")]
        parts += [_svg_text(LEFT - 8, y.at(value) + 4, f"{value:.4g}", "end")]
    for label, place in places.items():
        parts += [
            _svg_line(place, floor, place, floor + 4, "#888"),
            _svg_text(place, floor + 18, _short(label), "middle"),
        ]
    parts.append(_svg_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, "middle"))
    parts.append(_svg_text(LEFT, TOP - 12, HEADINGS.get(metric, metric), "middle"))
    return parts


def round_ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers (1, 2 or 5 times a power of ten) between two values; `low` if they are equal."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = power * next(factor for factor in (1, 2, 5, 10) if power * factor * TICKS >= high - low)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


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
        parts.append(f'{circle} stroke="{colour}"><title>{html.escape(note)}</title></circle>')
    return parts


def _legend(number: int, name: str) -> list[str]:
    y, x = TOP + 10 + 18 * number, WIDTH - RIGHT + 10
    colour = COLOURS[number % len(COLOURS)]
    return [_svg_line(x, y - 4, x + 16, y - 4, colour), _svg_text(x + 22, y, _short(name), "start")]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def _svg_line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def _svg_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _frame(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return f'{head} font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
