"""Every command of the pages that `lsdflow-view` runs, or `lsdflow` passes on to it, is one that it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from lsdflow_view.cli import app

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

from commands_of_pages import commands

# lsdflow passes these on, view as show
PASSED_ON = {"export": ["export"], "view": ["show"]}


def _words() -> list[list[str]]:
    """The arguments of lsdflow-view in the pages' commands; those of a verb alone (`lsdflow export`) only name it."""
    named = [c for c in commands() if len(c.words) > 2]
    found = [list(c.words[1:]) for c in named if c.program == "lsdflow-view"]
    passed = [c.words[1:] for c in named if c.program == "lsdflow" and c.words[1] in PASSED_ON]
    return [*found, *([*PASSED_ON[words[0]], *words[1:]] for words in passed)]


def _parse(words: list[str]) -> None:
    """Raises what typer raises if lsdflow-view would not take these words, KeyError for a verb; runs nothing."""
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and words:
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        command.make_context("lsdflow-view", list(words))


def test_the_pages_show_each_verb() -> None:
    verbs = {" ".join(words[: 2 if words[0] == "export" else 1]) for words in _words()}
    assert {"show", "export ome", "export precomputed"} <= verbs


@pytest.mark.parametrize("words", sorted({tuple(words) for words in _words()}), ids=" ".join)
def test_it_takes_what_the_pages_say(words: tuple[str, ...]) -> None:
    _parse(list(words))


@pytest.mark.parametrize("words", ["shwo exp", "show exp --tresholds", "export ome exp out --worker 3", "show"])
def test_what_it_does_not_take_is_found(words: str) -> None:
    with pytest.raises((KeyError, TyperException)):
        _parse(words.split())
