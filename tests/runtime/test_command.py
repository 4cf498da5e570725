"""The command around every stage: signals and errors become exit codes and an outcome, whatever they interrupt."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lsdflow_command import app as app_module
from lsdflow_command import cli as module
from lsdflow_command.app import StageCommand, stage_app
from lsdflow_command.cli import version_line
from lsdflow_command.stage import Stage
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.model import StrictModel


class Empty(Stage):
    def run(self, experiment: Experiment) -> None:
        raise NotImplementedError

    def validate(self, experiment: Experiment) -> list[StageError]:
        raise NotImplementedError

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        raise NotImplementedError

    def status(self, experiment: Experiment) -> dict[str, Any]:
        raise NotImplementedError

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        raise NotImplementedError


class Sleepy(Empty):
    """A stage that is asked to stop while a class is made, as in the middle of an import."""

    def run(self, experiment: Experiment) -> None:
        del experiment

        class Noticed:
            def __set_name__(self, owner: type, name: str) -> None:
                os.kill(os.getpid(), signal.SIGTERM)

        type("Made", (), {"attribute": Noticed()})


class Unhelpful(Empty):
    """A stage that is asked to stop under a library that makes an error of its own of whatever it meets."""

    def run(self, experiment: Experiment) -> None:
        del experiment
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except Exception:  # noqa: BLE001 - as libraries do
            raise ImportError("cannot import name 'node'") from None


class Faulty(Empty):
    """A stage with an internal error."""

    def repair(self, experiment: Experiment) -> dict[str, int]:
        raise ZeroDivisionError(experiment.path)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "experiment.toml").write_text('[experiment]\nname = "a"\n')
    stages = {"sleepy": Sleepy, "unhelpful": Unhelpful, "faulty": Faulty}
    monkeypatch.setattr(app_module, "load_stage", lambda name: stages[name]())
    return tmp_path


def outcome(experiment: Path) -> dict[str, object]:
    (path,) = (experiment / "runs").glob("*/*/outcome.json")
    return dict(read_json(path))


APP = stage_app(StageCommand("sleepy", StrictModel, has_blocks=False))
UNHELPFUL = stage_app(StageCommand("unhelpful", StrictModel))
FAULTY = stage_app(StageCommand("faulty", StrictModel))


@pytest.mark.parametrize("app", [APP, UNHELPFUL])
def test_a_signal_in_the_middle_of_an_import_ends_with_75_also_in_the_outcome(
    experiment: Path, app: typer.Typer
) -> None:
    assert CliRunner().invoke(app, ["run", "-e", str(experiment)]).exit_code == 75
    assert outcome(experiment)["exit_code"] == 75


def test_an_internal_error_ends_with_70_and_no_traceback(experiment: Path) -> None:
    done = CliRunner().invoke(FAULTY, ["repair", "-e", str(experiment)])
    assert done.exit_code == 70
    assert "internal: ZeroDivisionError" in done.output
    assert "Traceback" not in done.output


def test_an_internal_error_is_json_with_json(experiment: Path) -> None:
    done = CliRunner().invoke(FAULTY, ["repair", "-e", str(experiment), "--json"])
    assert done.exit_code == 70
    answer = json.loads(done.stdout)
    assert (answer["error"], answer["exit_code"]) == ("InternalError", 70)
    assert answer["what"].startswith("internal: ZeroDivisionError")


@pytest.mark.parametrize("verb", ["repair", "worker"])
def test_a_stage_without_blocks_has_no_repair_and_no_workers_and_reports_a_fix(experiment: Path, verb: str) -> None:
    done = CliRunner().invoke(APP, [verb, "-e", str(experiment)])
    assert done.exit_code == 2
    assert "sleepy run" in done.output
    listed = [f" {verb} " in CliRunner().invoke(app, ["--help"]).output for app in (APP, FAULTY)]
    assert listed == [False, True]


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_debug_adds_the_traceback_and_changes_no_exit_code(experiment: Path, debug: list[str]) -> None:
    fault = CliRunner().invoke(FAULTY, ["repair", "-e", str(experiment), *debug])
    assert fault.exit_code == 70
    refusal = CliRunner().invoke(FAULTY, ["repair", "-e", str(experiment), "--set", "faulty.key=1", *debug])
    assert refusal.exit_code == 78
    assert "error: unknown table [faulty]" in refusal.stderr
    assert ["Traceback" in answer.stderr for answer in (fault, refusal)] == [bool(debug)] * 2


@pytest.mark.parametrize(
    ("words", "what", "where"),
    [
        (("plan", "--json", "--nonsense"), "No such option: --nonsense", "toy plan"),
        (("plan", "--json"), "Missing option '--experiment'", "toy plan"),
        (("nothing", "--json"), "No such command 'nothing'", "toy"),
    ],
)
def test_a_wrong_command_line_is_json_for_who_asked_for_json_and_text_for_people(
    words: tuple[str, ...], what: str, where: str
) -> None:
    toy = stage_app(StageCommand("toy", StrictModel))
    programs = CliRunner().invoke(toy, words, prog_name="toy")
    people = CliRunner().invoke(toy, [word for word in words if word != "--json"], prog_name="toy")
    answer = json.loads(programs.stdout)
    assert (programs.exit_code, answer["exit_code"], answer["error"]) == (2, 2, "UsageError")
    assert answer["what"].startswith(what)
    assert answer["where"] == where
    assert (people.exit_code, people.stdout) == (2, "")
    assert what.split(":", maxsplit=1)[0] in people.stderr


def test_the_version_includes_the_commit_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSDFLOW_REVISION", "0123456789abcdef-dirty")
    contract = version("lsdflow-contract")
    line = version_line("predict", "lsdflow-predict")
    assert line == f"predict {version('lsdflow-predict')} (contract {contract}), revision 0123456789ab-dirty"
    monkeypatch.setattr(module, "source_revision", lambda: "")
    assert version_line("predict", "lsdflow-predict").endswith(f"(contract {contract})")
