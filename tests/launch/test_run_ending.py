"""After a run of a finished experiment that was refused: what is reported, what is left out, and the next command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from predicted_experiment import make_predicted

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_launch.init.demo import make_demo
from lsdflow_launch.report import scores_are_current
from lsdflow_launch.run import Ending, ending_of
from lsdflow_launch.status import status_of

REFUSED = "train-lsd.backend"
PART = ("--from", "train-lsd", "--to", "train-lsd", "--set", "train-lsd.backend=nothing")


def _lsdflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from lsdflow_launch.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of which all stages after predict have finished."""
    folder = tmp_path_factory.mktemp("finished") / "exp"
    make_predicted(folder)
    done = _lsdflow("run", str(folder), "--from", "watershed")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def refused(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with scores and a finished training; a wrong setting is refused for people and for programs."""
    folder = tmp_path_factory.mktemp("run") / "exp"
    make_demo(folder, (60, 70, 80), seed=3, mode="acrlsd")
    done = _lsdflow("run", str(folder), "--to", "prepare")
    assert done.returncode == 0, done.stderr
    earlier = Manifest(writer=Writer.of("train-lsd"), key="k", config={}, inputs={}, outputs={}, identity="i")
    earlier.write(ExperimentLayout(folder))
    shutil.copytree(finished / "report", folder / "report")
    people = _lsdflow("run", str(folder), *PART)
    programs = _lsdflow("run", str(folder), *PART, "--json")
    assert (people.returncode, programs.returncode) == (78, 78), people.stderr
    assert not (folder / "runs" / "train-lsd").exists(), "a stage ran before all of them were checked"
    assert REFUSED in people.stderr
    (_ended(load_experiment(folder), "train-lsd", "20260101T000000-1", 73) / "log.txt").touch()
    (folder / "people").write_text(people.stdout)
    (folder / "programs").write_text(programs.stdout)
    return folder


@pytest.fixture
def experiment(finished: Path, tmp_path: Path) -> Experiment:
    shutil.copytree(finished, tmp_path / "exp", ignore=shutil.ignore_patterns("runs"))
    return load_experiment(tmp_path / "exp")


def test_after_a_refusal_the_same_run_is_offered(refused: Path) -> None:
    typed = shlex.join(["lsdflow", "run", str(refused), *PART])
    assert f"{typed}    # resumes, once that is fixed" in (refused / "people").read_text()
    assert any(step.startswith(f"{typed} ") for step in json.loads((refused / "programs").read_text())["next"])


def test_after_a_refusal_no_earlier_score_is_printed(refused: Path) -> None:
    assert (refused / "report" / "scores.json").exists()
    assert "VOI" not in (refused / "people").read_text()
    assert "report: " in (refused / "people").read_text()
    assert json.loads((refused / "programs").read_text())["scores"] is None


def test_the_json_names_which_stage_ended_the_run_and_why(refused: Path) -> None:
    answer = json.loads((refused / "programs").read_text())
    assert (answer["exit_code"], answer["stage"]) == (78, "train-lsd")
    assert answer["error"]["error"] == "ConfigError"
    assert REFUSED in answer["error"]["where"] + answer["error"]["what"]


def test_status_of_a_finished_stage_reports_that_its_last_run_was_refused(refused: Path) -> None:
    answer = json.loads(_lsdflow("status", str(refused), "--json").stdout)
    assert answer["train-lsd"]["state"] == "finished"
    last = answer["train-lsd"]["last_run"]
    assert (last["exit_code"], last["problem"]) == (73, "ended")
    assert not any("last_run" in facts for stage, facts in answer.items() if stage != "train-lsd")
    output = _lsdflow("status", str(refused)).stdout
    assert "ended with exit code 73: ended" in output
    assert "train-lsd log: " in output


@pytest.mark.parametrize(("last", "expected"), [("segment", False), ("evaluate", True)])
def test_a_score_is_printed_when_evaluate_was_part_of_what_ended_well(
    experiment: Experiment, last: str, expected: bool
) -> None:
    voi = json.loads((experiment.layout.report / "scores.json").read_text())["voi"]
    done = _lsdflow("run", str(experiment.layout.root), "--from", "segment", "--to", last)
    assert (done.returncode, f"VOI {voi:.3f}" in done.stdout) == (0, expected), done.stderr


def test_a_refusal_is_dropped_once_the_stage_has_been_recomputed(experiment: Experiment) -> None:
    _ended(experiment, "watershed", "20260101T000000-1", 73)
    assert "last_run" in status_of(experiment, _silent)["watershed"]
    _ended(experiment, "watershed", "20260101T000001-1", 0)
    assert "last_run" not in status_of(experiment, _silent)["watershed"]


def test_a_refusal_from_before_the_manifest_is_not_reported(experiment: Experiment) -> None:
    run = _ended(experiment, "watershed", "20260101T000000-1", 75)
    earlier = experiment.layout.manifest("watershed").stat().st_mtime - 60
    os.utime(run / "outcome.json", (earlier, earlier))
    assert "last_run" not in status_of(experiment, _silent)["watershed"]


def test_scores_are_not_current_when_anything_before_them_was_recomputed(experiment: Experiment) -> None:
    assert scores_are_current(experiment.layout)
    watershed = read_manifest(experiment.layout, "watershed")
    watershed.model_copy(update={"identity": "another"}).write(experiment.layout)
    assert not scores_are_current(experiment.layout)
    watershed.write(experiment.layout)
    assert scores_are_current(experiment.layout)
    experiment.layout.manifest("evaluate").unlink()
    assert not scores_are_current(experiment.layout)


def test_the_error_of_the_stage_that_ended_a_chain_is_that_of_its_newest_run(experiment: Experiment) -> None:
    chain = ("watershed", "agglomerate", "segment")
    _ended(experiment, "watershed", "20260101T000000-1", 73)
    # Its run in this chain ended before it had a folder.
    assert ending_of(experiment, chain, 78, "watershed") == Ending("watershed")
    _ended(experiment, "agglomerate", "20260101T000002-1", 74)
    assert ending_of(experiment, chain, 74, "agglomerate") == Ending("agglomerate", {"what": "ended"})
    assert ending_of(experiment, chain, 0) == Ending()


def test_of_jobs_that_were_followed_only_a_stage_with_the_code_of_the_chain_is_believed(experiment: Experiment) -> None:
    _ended(experiment, "watershed", "20260101T000000-1", 73)
    assert ending_of(experiment, ("watershed", "segment"), 73) == Ending("watershed", {"what": "ended"})
    assert ending_of(experiment, ("watershed", "segment"), 75) == Ending()


def _ended(experiment: Experiment, stage: str, name: str, code: int) -> Path:
    """A run that has ended."""
    folder = experiment.layout.stage_runs(stage) / name
    folder.mkdir(parents=True)
    (folder / "config.resolved.json").write_text("{}")
    outcome = {"exit_code": code, "started": 1.0, "error": {"what": "ended"} if code else None}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    return folder


def _silent(*_: Any) -> dict[str, int]:
    return {"exit_code": 66}
