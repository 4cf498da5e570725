"""The output of a command: text, or with --json only one JSON text on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from lsdflow_command.console import is_quiet
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed


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


def show_result(layout: ExperimentLayout, *, scored: bool) -> None:
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


def following(text: str) -> str:
    """Return the line with the next command; empty with --quiet."""
    return "" if is_quiet() else f"next: {text}"
