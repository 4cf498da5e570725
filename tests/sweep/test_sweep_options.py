"""`lsdflow sweep` by the command line: every option has its effect, and the exit code says how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.planning.evidence import Quantity
from lsdflow_launch.planning.plan import StageEstimate
from lsdflow_launch.sweep import cli as sweep_cli
from lsdflow_launch.sweep import run as sweep_run
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, write_folders

from .conftest import FakeStages, ask_here

Write = Callable[[str], Path]
GRID = "[axes]\n'watershed.min_seed_distance_vox' = [4, 6]\n'segment.threshold' = [0.2, 0.4]\n"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    """Stand-ins for the commands of the stages; what they are asked is answered in this process."""
    fake = FakeStages()
    for module in (sweep_cli, sweep_run):
        monkeypatch.setattr(module, "run_stage", fake)
    monkeypatch.setattr(sweep_cli, "ask_stage", ask_here)
    needs = StageEstimate({"vram_per_worker_bytes": Quantity(5e9, "")}, 1.0)  # the trainings are not in this process
    monkeypatch.setattr(sweep_cli, "make_plan", lambda *_: SimpleNamespace(estimates={"predict": needs}))
    return fake


@pytest.fixture
def prepared(sweep_file: Write) -> SweepFolder:
    """2 x 2 runs, of which two and two share watershed and agglomerate."""
    found = load_sweep(sweep_file(GRID))
    return write_folders(found, found.default_folder)


def sweep(code: int, *arguments: str | Path) -> str:
    """The output of `lsdflow sweep`, which has to end with `code`."""
    done = CliRunner().invoke(sweep_cli.app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_plan_and_prepare_refuse_a_wrong_value_and_write_nothing(stages: FakeStages, sweep_file: Write) -> None:
    file = sweep_file("[axes]\n'segment.thresholds_step' = [0.1, -1.0]\n")
    for verb in ("plan", "prepare"):
        sweep(78, verb, file)
    assert not file.with_suffix("").exists()
    assert stages.calls == []


def test_plan_divides_the_hours_among_the_servers(stages: FakeStages, sweep_file: Write, base: Path) -> None:
    made = {"key": "k", "config": {}, "inputs": {}, "outputs": {}, "identity": "w", "facts": {"seconds": 1800.0}}
    manifest = Manifest.model_validate({"writer": Writer.of("watershed"), **made})
    manifest.write(load_experiment(base).layout)
    facts = json.loads(sweep(0, "plan", sweep_file(GRID), "--parts", "4", "--json"))
    assert (facts["hours_left"], facts["hours_left_of_slowest_part"]) == (1.0, 0.5)
    assert "memory of a GPU: 5 GB" in sweep(0, "plan", sweep_file(GRID))


def test_prepare_writes_into_the_named_folder(stages: FakeStages, sweep_file: Write, tmp_path: Path) -> None:
    file = sweep_file(GRID)
    sweep(0, "prepare", file, tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "sweep.json").is_file()
    assert not file.with_suffix("").exists()


def test_prepare_ends_with_the_code_of_the_first_volumes_that_fail(
    sweep_file: Write, stages: FakeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_stage: str, experiment: Experiment) -> int:
        return 65 if experiment.path.parent.name == "dataset-a" else 0

    failing = FakeStages(fails)
    monkeypatch.setattr(sweep_cli, "run_stage", failing)
    raw = "'prepare.target.raw' = "
    file = sweep_file(f"[axes.dataset]\na = {{ {raw}'input/cells.hdf' }}\nb = {{ {raw}'./input/cells.hdf' }}\n")
    sweep(65, "prepare", file)
    assert failing.calls == [("prepare", "dataset-a")], "the second is not begun"


def test_prepare_refuses_a_base_that_finished_with_other_settings(
    stages: FakeStages, sweep_file: Write, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(stage: str, arguments: Sequence[str]) -> Any:
        return {"finished": False} if arguments[0] == "status" else ask_here(stage, arguments)

    monkeypatch.setattr(sweep_cli, "ask_stage", ask)
    stages("prepare", ["run", "--experiment", str(base / "experiment.toml")])
    file = sweep_file(GRID)
    sweep(73, "prepare", file)
    assert not file.with_suffix("").exists()


def test_run_makes_only_the_runs_of_where(stages: FakeStages, prepared: SweepFolder) -> None:
    sweep(0, "run", prepared.root, "--where", "segment.threshold=0.4")
    made = {folder for stage, folder in stages.calls if stage == "evaluate"}
    assert made == {run.name for run in prepared.plan.runs if run.at["segment.threshold"] == "0.4"}


def test_run_ends_with_79_if_a_run_failed(
    stages: FakeStages, prepared: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_run, "run_stage", FakeStages(lambda stage, _experiment: 65 * (stage == "segment")))
    assert "4 failed" in sweep(79, "run", prepared.root)


def test_run_refuses_a_base_that_has_changed(stages: FakeStages, prepared: SweepFolder, base: Path) -> None:
    (base / "experiment.toml").write_text((base / "experiment.toml").read_text() + "# another\n")
    sweep(73, "run", prepared.root)
    (base / "experiment.toml").unlink()
    sweep(66, "run", prepared.root)
    assert stages.calls == []


def test_the_options_of_containers_reach_every_stage(
    stages: FakeStages, prepared: SweepFolder, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []

    def containers(_experiment: Experiment, *options: Any) -> FakeStages:
        given.append(options)
        return stages

    monkeypatch.setattr(sweep_run, "Containers", containers)
    options = ("--engine", "docker", "--images", tmp_path / "sifs", "--network", "lab")
    sweep(0, "run", prepared.root, "--backend", "container", *options)
    assert set(given) == {("docker", tmp_path / "sifs", "lab", (prepared.root, base))}
    assert len(stages.calls) == len(given)


def test_merge_writes_into_the_named_folder(stages: FakeStages, prepared: SweepFolder, tmp_path: Path) -> None:
    sweep(79, "merge", prepared.root, "--out", tmp_path / "tables")
    assert (tmp_path / "tables" / "runs.csv").is_file()
    assert not (prepared.root / "merged").exists()
