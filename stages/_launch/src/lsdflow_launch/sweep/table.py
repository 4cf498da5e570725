"""A merged sweep for reading: CSV of all runs, and the means in Markdown and HTML."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.files import write_if_changed
from lsdflow_launch.sweep.merge import Mean, Merged, Row

# Headings of the listed scores; VOI is in bits.
LISTED = {
    "voi": "VOI [bits]",
    "voi_split": "VOI split [bits]",
    "voi_merge": "VOI merge [bits]",
    "adapted_rand_error": "adapted Rand error",
    "threshold": "threshold",
}
NOTE = "State: complete = all runs of a line are done, partial = some are, failed or missing = none is."
NOT_DONE = ["run", "status", "stage", "why"]
_STYLE = (
    "body{font:15px/1.5 sans-serif;margin:2em auto;padding:0 1em;max-width:76em;color:#222}.wide{overflow-x:auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}"
    "td{white-space:nowrap}.partial,.failed,.missing{color:#b00}.best{font-weight:bold;background:#eef6ee}"
    "meter{width:12em}"
)
Cells = list[str]


def write_merged(merged: Merged, folder: Path, title: str = "Sweep") -> list[Path]:
    """Write runs.csv, table.md and index.html; return their paths."""
    texts = {
        "runs.csv": _csv(_run_columns(merged), [_run_cells(row, merged) for row in merged.rows]),
        "table.md": markdown(merged, title),
        "index.html": _page(merged, title, folder),
    }
    for name, text in texts.items():
        write_if_changed(folder / name, text.encode())
    return [folder / name for name in texts]


def summary(merged: Merged) -> str:
    """Return '29 of 32 runs done, 1 failed, 2 missing', and the best complete mean."""
    counts, metric = merged.counts, merged.plan.metric
    parts = [f"{counts.pop('done')} of {len(merged.rows)} runs done"]
    parts += [f"{count} {status}" for status, count in counts.items() if count]
    if without := sum(row.status == "done" and metric not in row.scores for row in merged.rows):
        parts.append(f"{without} without {metric}")
    if (best := merged.best) is not None:
        at = ", ".join(f"{axis} = {label}" for axis, label in best.at.items())
        parts.append(f"lowest {metric}: {best.mean(metric):.4g}" + (f" at {at}" if at else ""))
    return ", ".join(parts)


def markdown(merged: Merged, title: str = "Sweep") -> str:
    """Return the means as a table, and below it every run that is not done, with the reason."""
    lines = [f"# {title}: {summary(merged)}", ""]
    lines += _markdown_table(_mean_columns(merged), [_mean_cells(mean) for mean in merged.means])
    lines += ["", _notes(merged)]
    if open_ := _open_rows(merged):
        lines += ["", "Not done:", "", *_markdown_table(NOT_DONE, open_)]
    return "\n".join(lines) + "\n"


def _notes(merged: Merged) -> str:
    over = merged.plan.means_over
    return NOTE + (f" Means over {', '.join(over)}; ± is the standard deviation over runs." if over else "")


def _page(merged: Merged, title: str, folder: Path) -> str:
    """Return the HTML page: a bar shows the metric, the best line is marked, and a single run links to its report."""
    metric, best = merged.plan.metric, merged.best
    highest = max((mean.mean(metric) or 0.0 for mean in merged.means), default=0.0)
    lines = []
    for mean in merged.means:
        value, report = mean.mean(metric), mean.rows[0].report if len(mean.rows) == 1 else None
        bar = "" if value is None else f'<meter max="{highest}" value="{value}">{value}</meter>'
        link = "" if report is None else f'<a href="{html.escape(quote(os.path.relpath(report, folder)))}">report</a>'
        flag = ' class="best"' if mean == best else ""
        lines.append(f"<tr{flag}>{_html_cells(_mean_cells(mean))}<td>{bar}</td><td>{link}</td></tr>")
    name = html.escape(LISTED.get(metric, metric))
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in _mean_columns(merged))
    open_ = "".join(f"<tr>{_html_cells(cells)}</tr>" for cells in _open_rows(merged))
    not_done = f"<h2>Not done</h2><table><tr>{_html_cells(NOT_DONE)}</tr>{open_}</table>" if open_ else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f'<p>{html.escape(summary(merged))}</p><div class="wide"><table>'
        f"<tr>{heads}<th>{name}</th><th></th></tr>{''.join(lines)}</table></div>"
        f"<p>The line with the lowest {name} is marked. {html.escape(_notes(merged))}</p>{not_done}</html>\n"
    )


def _run_columns(merged: Merged) -> Cells:
    seconds = [f"seconds {stage}" for stage in _stages(merged)]
    return ["run", *merged.plan.axes, "status", "exit code", "failed stage", "error", *merged.metrics, *seconds, "host"]


def _run_cells(row: Row, merged: Merged) -> Cells:
    ended = [str(row.exit_code), row.failed_stage, row.error] if row.status in ("done", "failed") else [""] * 3
    scores = [_exact(row.scores.get(metric)) for metric in merged.metrics]
    seconds = [_exact(row.seconds.get(stage)) for stage in _stages(merged)]
    return [row.run.name, *row.run.at.values(), row.status, *ended, *scores, *seconds, row.host]


def _mean_columns(merged: Merged) -> Cells:
    return [*merged.means[0].at, *LISTED.values(), "seconds of all stages", "runs", "state"]


def _mean_cells(mean: Mean) -> Cells:
    numbers = []
    for metric in LISTED:
        value, deviation = mean.mean(metric), mean.deviation(metric)
        text = "" if value is None else f"{value:.4g}"
        numbers.append(text if deviation is None else f"{text} ± {deviation:.2g}")
    seconds = "" if mean.seconds is None else f"{mean.seconds:.0f}"
    return [*mean.at.values(), *numbers, seconds, f"{mean.done} of {len(mean.rows)}", mean.state]


def _open_rows(merged: Merged) -> list[Cells]:
    """Return every run that is not done, with the reason."""
    rows = [row for row in merged.rows if row.status != "done"]
    why = [row.error or (f"exit code {row.exit_code}" if row.exit_code else "") for row in rows]
    return [[row.run.name, row.status, row.failed_stage, text] for row, text in zip(rows, why, strict=True)]


def _stages(merged: Merged) -> list[str]:
    found = {stage for row in merged.rows for stage in row.seconds}
    return [stage for stage in STAGES if stage in found]


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)


def _csv(head: Cells, rows: Iterable[Cells]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _markdown_table(head: Cells, rows: Sequence[Cells]) -> list[str]:
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in cells] for cells in (head, *rows)]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return [texts[0], "|" + "---|" * len(head), *texts[1:]]


def _html_cells(cells: Cells) -> str:
    """Return the cells of one row; states that need attention have a CSS class."""
    flags = (f' class="{text}"' if text in ("partial", "failed", "missing") else "" for text in cells)
    return "".join(f"<td{flag}>{html.escape(text)}</td>" for flag, text in zip(flags, cells, strict=True))
