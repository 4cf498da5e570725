"""What a verb answers: lines for people, or with --json one JSON text on stdout and nothing else there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from lsdflow_command.loudness import is_quiet
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json


@contextmanager
def stdout_for_json(as_json: bool) -> Iterator[None]:
    """With --json, what stages and wrappers write to stdout goes to stderr instead."""
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


def tell(facts: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Answer with `facts`, or with `text`; an empty text is no line."""
    if as_json:
        typer.echo(json.dumps(facts))
    elif text := text.rstrip("\n"):
        typer.echo(text)


def result_facts(experiment: Experiment, code: int) -> dict[str, Any]:
    """How a run ended: exit code, what each stage ended with, scores and report as far as they are there."""
    layout = experiment.layout
    scores, page = layout.report / "scores.json", layout.report / "index.html"
    return {
        "exit_code": code,
        "experiment": str(experiment.path),
        "scores": read_json(scores) if scores.is_file() else None,
        "report": str(page) if page.is_file() else None,
    }


def following(text: str) -> str:
    """What to type next; nothing where only results are wanted."""
    return "" if is_quiet() else f"next: {text}"
