"""A real sweep over the threshold of a predicted volume, verb by verb; the stages run in this process."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from lsdflow_command.stage import load_stage
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_launch.sweep import cli as sweep_cli
from lsdflow_launch.sweep import run as sweep_run

from .conftest import ask_here, bring_affinities


def make_here(experiment: Experiment, *stages: str) -> None:
    for stage in stages:
        load_stage(stage).run(experiment)


def sweep(code: int, *arguments: str | Path) -> str:
    done = CliRunner().invoke(sweep_cli.app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_a_sweep_gives_each_run_what_the_experiment_alone_gives(
    base: Path, sweep_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def run_here(stage: str, arguments: Sequence[str]) -> int:
        called.append(stage)
        make_here(load_experiment(Path(arguments[arguments.index("--experiment") + 1])), stage)
        return 0

    monkeypatch.setattr(sweep_cli, "run_stage", run_here)
    monkeypatch.setattr(sweep_run, "run_stage", run_here)
    monkeypatch.setattr(sweep_cli, "ask_stage", ask_here)
    # The trainings, which the plan of the base asks, are not in this process.
    monkeypatch.setattr(sweep_cli, "make_plan", lambda *_: SimpleNamespace(estimates={}))
    make_here(bring_affinities(base), "prepare", "watershed", "agglomerate")
    file, folder = sweep_file('[axes]\n"segment.threshold" = [0.2, 0.4]\n'), tmp_path / "grid"
    assert "to be made: segment 2, evaluate 2" in sweep(0, "plan", file)
    assert not folder.exists(), "a plan writes nothing"
    assert "wrote 2 runs" in sweep(0, "prepare", file)
    assert "1 runs: 1 done" in sweep(0, "run", folder, "--part", "1/2")
    assert "1 of 2 runs done, 1 missing" in sweep(79, "merge", folder)
    assert "2 runs: 2 done" in sweep(0, "run", folder)
    assert "2 of 2 runs done, lowest voi" in sweep(0, "merge", folder)
    assert called == ["prepare", "segment", "evaluate", "segment", "evaluate"]
    assert "to be made: nothing" in sweep(0, "plan", file)

    one = folder / "runs" / "threshold-0.2"
    linked = (one / "manifests" / "prepare.json").resolve()
    prepare = load_stage("prepare")
    assert prepare.verify(load_experiment(one))["verified"]
    assert prepare.repair(load_experiment(one))["broken"] == 0
    prepare.run(load_experiment(one))
    assert (one / "manifests" / "prepare.json").resolve() == linked == base.resolve() / "manifests" / "prepare.json"
    assert "wrote 2 runs" in sweep(0, "prepare", file)

    shutil.copytree(base, tmp_path / "alone")
    alone = load_experiment(tmp_path / "alone", ["segment.threshold=0.4"])
    make_here(alone, "segment", "evaluate")
    run = ExperimentLayout(folder / "runs" / "threshold-0.4")
    assert read_manifest(run, "segment").identity == read_manifest(alone.layout, "segment").identity
    assert not made(run, "segment").is_symlink()
    with (folder / "merged" / "runs.csv").open(newline="") as opened:
        low, high = csv.DictReader(opened)
    scores = read_json(alone.layout.report / "scores.json")
    for name in ("voi", "voi_split", "voi_merge", "adapted_rand_error"):
        assert float(high[name]) == scores[name], name
    assert low["voi"] != high["voi"]
