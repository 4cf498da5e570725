"""Every verb of every command can be read by a program; those that cannot are named here, with the reason."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from lsdflow_launch import output
from lsdflow_launch.cli import app

STAGES = ("prepare", "predict", "watershed", "agglomerate", "segment", "evaluate")
EXCEPTIONS = {
    "schema": "what it writes is JSON, always",
    "worker": "it has an exit code and no result: its coordinator reports",
    "lsdflow view": "it serves until it is ended",
    "lsdflow export": "all its arguments are passed to lsdflow-view export",
    "lsdflow cite": "references for people; for programs: --bibtex",
}


def verbs_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for word, verb in (inner or {}).items():
        yield from verbs_of(verb, f"{name} {word}")


def all_verbs() -> dict[str, Any]:
    apps = {"lsdflow": app, **{s: importlib.import_module(f"lsdflow_{s}.cli").app for s in STAGES}}
    return {verb: found for name, typed in apps.items() for verb, found in verbs_of(get_command(typed), name)}


def options_of(verb: Any) -> set[str]:
    return {option for parameter in verb.params for option in parameter.opts}


VERBS = all_verbs()


def test_the_verbs_are_found() -> None:
    assert {"lsdflow run", "lsdflow sweep merge", "watershed repair", "segment import-graph"} <= set(VERBS)
    assert len(VERBS) > 60


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_answers_a_program_or_says_why_not(name: str) -> None:
    reason = EXCEPTIONS.get(name) or EXCEPTIONS.get(name.partition(" ")[2])
    assert ("--json" in options_of(VERBS[name])) is not bool(reason), name


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_as_verbose_as_requested(name: str) -> None:
    assert {"--quiet", "--verbose"} <= options_of(VERBS[name])


def test_what_others_write_to_stdout_goes_aside_and_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    with output.stdout_for_json(True):
        os.write(1, b"a stage\n")
    os.write(1, b"an answer\n")
    assert tuple(capfd.readouterr()) == ("an answer\n", "a stage\n")
    with output.stdout_for_json(False):
        os.write(1, b"a stage\n")
    assert capfd.readouterr().out == "a stage\n"


def test_an_answer_is_one_text_for_programs_and_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_answer({"runs": 3}, "3 runs\n", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"runs": 3}
    output.print_answer({"runs": 3}, "3 runs\n", as_json=False)
    output.print_answer({"runs": 3}, "", as_json=False)
    assert capsys.readouterr().out == "3 runs\n"
