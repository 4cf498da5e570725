"""`lsdflow scaling`: speeds of several numbers of processes side by side; nothing but scaling.json stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch import scaling
from lsdflow_launch.cli import app

SAMPLES_PER_S = {1: 2.0, 2: 3.0, 4: 4.0}


def make(root: Path, mode: str = "acrlsd") -> Experiment:
    root.mkdir()
    (root / "experiment.toml").write_text(f'[experiment]\nmode = "{mode}"\n')
    return load_experiment(root)


def answer(processes: int) -> dict[str, Any]:
    """What the command `scaling` of a training prints."""
    shares = {"all_reduce_share": 0.25, "all_reduce_wait_share": None, "data_wait_share": 0.01}
    where = {"host": "n1", "device": "cpu"}
    return {**shares, **where, "samples_per_s": SAMPLES_PER_S[processes], "peak_rss_mib": [512.0] * processes}


class Trainings:
    """Stands in for the commands of the trainings, writes to their folder, and notes what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Sequence[str]]] = []

    def __call__(self, stage: str, words: Sequence[str]) -> dict[str, Any]:
        self.asked.append((stage, words))
        folder = Path(words[words.index("--into") + 1])
        folder.mkdir()
        (folder / "loss.csv").write_text("iteration\n")
        return answer(int(words[words.index("--processes") + 1]))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    stand_in = Trainings()
    monkeypatch.setattr(scaling, "choose_ask", lambda _experiment: stand_in)
    return stand_in


def test_the_efficiency_is_the_speed_of_a_process_relative_to_the_fewest_processes(
    tmp_path: Path, trainings: Trainings
) -> None:
    found = scaling.measure_scaling(make(tmp_path / "exp"), [4, 2], ["fsdp"], 20, trainings)
    assert [(row["processes"], row["efficiency"]) for row in found["rows"]] == [(4, pytest.approx(2 / 3)), (2, 1.0)]
    assert {row["strategy"] for row in found["rows"]} == {"fsdp"}
    for _, words in trainings.asked:
        assert {"train-lsd.max_iteration=20", "train-lsd.strategy=fsdp"} <= set(words)


@pytest.mark.parametrize(("mode", "stage"), [("acrlsd", "train-lsd"), ("mtlsd", "train-acrlsd")])
def test_only_the_table_stays_and_it_is_printed(tmp_path: Path, trainings: Trainings, mode: str, stage: str) -> None:
    root = make(tmp_path / "exp", mode).layout.root
    done = CliRunner().invoke(app, ["scaling", str(root), "--processes", "1,2"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in root.iterdir()} == {"experiment.toml", "scaling.json"}
    assert [asked for asked, _ in trainings.asked] == [stage, stage]
    kept = json.loads((root / "scaling.json").read_text())
    assert (kept["stage"], kept["device"], len(kept["rows"])) == (stage, "cpu", 2)
    row = next(line for line in done.output.splitlines() if line.split()[:1] == ["2"])
    assert row.split() == ["2", "3", "75", "%", "25", "%", "not", "known", "1", "%", "0.50,", "0.50", "GiB"]
    assert "share these cores" in done.output


@pytest.mark.parametrize("option", [("--processes", "1,x"), ("--processes", "0"), ("--strategy", "dpp")])
def test_what_it_does_not_know_is_refused(tmp_path: Path, trainings: Trainings, option: tuple[str, str]) -> None:
    root = make(tmp_path / "exp").layout.root
    assert CliRunner().invoke(app, ["scaling", str(root), *option]).exit_code == 2
    assert trainings.asked == []


def test_the_error_of_a_training_is_that_of_the_command_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MissingInput("prepare has not finished")
    monkeypatch.setattr(scaling, "choose_ask", lambda _: lambda *_words: error.as_dict())
    root = make(tmp_path / "exp").layout.root
    done = CliRunner().invoke(app, ["scaling", str(root)])
    assert (done.exit_code, "prepare has not finished" in done.output) == (MissingInput.exit_code, True)
    assert {path.name for path in root.iterdir()} == {"experiment.toml"}
