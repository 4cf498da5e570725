"""The output of a command: text, or with --json only one JSON text on stdout; numbers as text: 1.2 GB, 3 h 05, 40 s."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lsdflow_command.console import is_quiet
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed

if TYPE_CHECKING:
    from rich.console import Console

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@contextmanager
def stdout_for_json(as_json: bool) -> Iterator[None]:
    """With --json, send to stderr what stages and wrappers write to stdout."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def print_answer(facts: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print `facts` as JSON, or `text`; an empty text prints nothing."""
    if as_json:
        typer.echo(json.dumps(facts))
    elif text := text.rstrip("\n"):
        typer.echo(text)


def result_facts(experiment: Experiment, code: int, *, scored: bool) -> dict[str, Any]:
    """Return how a run ended: exit code, and scores and report if they exist.

    scored: whether the scores belong to the current segmentation; otherwise they are left out.
    """
    layout = experiment.layout
    scores, page = layout.report / "scores.json", layout.report / "index.html"
    return {
        "exit_code": code,
        "experiment": str(experiment.path),
        "scores": read_sealed(scores, "run: evaluate run") if scored and scores.is_file() else None,
        "report": str(page) if page.is_file() else None,
    }


def print_scores(layout: ExperimentLayout, *, scored: bool) -> None:
    """Print the score, if it belongs to the current segmentation, and the path of the report."""
    scores, page = layout.report / "scores.json", layout.report / "index.html"
    best = read_sealed(scores, "run: evaluate run") if scored and scores.exists() else None
    if best and best.get("voi") is not None:
        typer.echo(
            f"VOI {best['voi']:.3f} bits (split {best['voi_split']:.3f} + merge {best['voi_merge']:.3f}), "
            f"adapted Rand error {best['adapted_rand_error']:.3f}, "
            f"{best['merge_function']} at threshold {best['threshold']}"
        )
    if page.exists():
        typer.echo(f"report: {page}")


def next_line(text: str) -> str:
    """Return the line with the next command, or several lines, with `lsdflow` as it was called; empty with --quiet."""
    called = _called_as()
    as_called = re.sub(r"^( *)lsdflow(?= )", lambda found: found[1] + called, text, flags=re.MULTILINE)
    return "" if is_quiet() else f"next: {as_called}"


def _called_as() -> str:
    """Return the command as it was typed: bin/lsdflow, or lsdflow if it was found by its name."""
    typed = sys.argv[0]
    by_name = Path(typed).name != "lsdflow" or shutil.which("lsdflow") == typed
    return "lsdflow" if by_name else shlex.quote(typed)


def size(count: float) -> str:
    """Return bytes as text, in powers of 1000."""
    for unit in UNITS[:-1]:
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {UNITS[-1]}"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes, hours or days."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def hours(value: float) -> str:
    """Return hours of cores or GPUs; less than one hour in minutes or seconds."""
    if 0 < value < 1:
        return duration(3600 * value)
    return f"{value:.3g} h" if value < 999.5 else f"{value:.0f} h"


def money(value: float) -> str:
    """Return an amount with two decimals; "< 0.01" for a smaller one."""
    return "< 0.01" if 0 < value < 0.005 else f"{value:.2f}"


def count(value: float) -> str:
    """Return a count as text."""
    return f"{value:.0f}" if value < 1e6 else f"{value:.3g}"


def plain_console(**settings: Any) -> Console:
    """Return a console that does not cut lines at 80 characters in a file or a pipe."""
    # Only few commands need rich's tables, and loading them takes time.
    from rich.console import Console

    console = Console(**settings)
    return console if console.is_terminal else Console(width=240, **settings)
