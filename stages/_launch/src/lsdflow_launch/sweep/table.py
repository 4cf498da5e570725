"""The tables of a merged sweep: CSV of all runs and of the means, and Markdown and HTML for reading."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.files import write_if_changed
from lsdflow_launch.sweep.merge import FIRST_METRICS, Mean, Merged, Row
from lsdflow_launch.sweep.plot import plot_svg

SHOWN = FIRST_METRICS[:4]
_STYLE = (
    "body{font:15px/1.5 sans-serif;margin:2em auto;max-width:60em;color:#222}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}.partial,.failed,.missing{color:#b00}"
    "svg{max-width:100%}"
)
Cells = list[str]


def write_merged(merged: Merged, folder: Path) -> list[Path]:
    """Write runs.csv, means.csv, table.md, plot.svg and index.html; return their paths."""
    plot = plot_svg(merged)
    texts = {
        "runs.csv": _csv(_run_columns(merged), [_run_cells(row, merged) for row in merged.rows]),
        "means.csv": _csv(_exact_columns(merged), [_exact_cells(mean, merged) for mean in merged.means]),
        "table.md": markdown(merged),
        "plot.svg": plot,
        "index.html": _page(merged, plot),
    }
    for name, text in texts.items():
        write_if_changed(folder / name, text.encode())
    return [folder / name for name in texts]


def summary(merged: Merged) -> str:
    """Return '29 of 32 runs done, 1 failed, 2 missing', and the best complete mean."""
    counts = merged.counts
    parts = [f"{counts.pop('done')} of {len(merged.rows)} runs done"]
    parts += [f"{count} {status}" for status, count in counts.items() if count]
    best = merged.best
    if best is not None:
        at = ", ".join(f"{axis} = {label}" for axis, label in best.at.items())
        parts.append(f"lowest {merged.plan.metric}: {best.mean(merged.plan.metric):.4g}" + (f" at {at}" if at else ""))
    return ", ".join(parts)


def markdown(merged: Merged) -> str:
    """Return the means as a table, and below it every run that is not done, with the reason."""
    head, rows = _mean_columns(merged, SHOWN), _all_means(merged, SHOWN)
    lines = [f"# Sweep: {summary(merged)}", "", *_markdown_table(head, rows)]
    if merged.plan.means_over:
        lines += ["", f"Means over {', '.join(merged.plan.means_over)}; ± is the standard deviation over runs."]
    if open_ := [_open_cells(row) for row in merged.rows if row.status != "done"]:
        lines += ["", "Not done:", "", *_markdown_table(["run", "status", "stage", "why"], open_)]
    return "\n".join(lines) + "\n"


def _page(merged: Merged, plot: str) -> str:
    head, rows = _mean_columns(merged, SHOWN), _all_means(merged, SHOWN)
    open_ = [_open_cells(row) for row in merged.rows if row.status != "done"]
    below = f"<h2>Not done</h2>{_html_table(['run', 'status', 'stage', 'why'], open_)}" if open_ else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Sweep</title><style>{_STYLE}</style>'
        f"<h1>Sweep</h1><p>{html.escape(summary(merged))}</p>{plot}{_html_table(head, rows)}{below}</html>\n"
    )


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


def _mean_columns(merged: Merged, metrics: Sequence[str]) -> Cells:
    return [*merged.kept_axes, *metrics, "runs", "state"]


def _all_means(merged: Merged, metrics: Sequence[str]) -> list[Cells]:
    return [_mean_cells(mean, metrics) for mean in merged.means]


def _mean_cells(mean: Mean, metrics: Sequence[str]) -> Cells:
    numbers = []
    for metric in metrics:
        value, deviation = mean.mean(metric), mean.deviation(metric)
        text = "" if value is None else f"{value:.4g}"
        numbers.append(text if deviation is None else f"{text} ± {deviation:.2g}")
    return [*mean.at.values(), *numbers, f"{mean.done} of {len(mean.rows)}", mean.state]


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
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]


def _html_table(head: Cells, rows: Sequence[Cells]) -> str:
    def cell(text: Any, kind: str) -> str:
        flag = f' class="{text}"' if text in ("partial", "failed", "missing") else ""
        return f"<{kind}{flag}>{html.escape(str(text))}</{kind}>"

    def line(cells: Cells, kind: str) -> str:
        return "<tr>" + "".join(cell(text, kind) for text in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
