"""Runs of a sweep: each once, whoever asks for it; failed ones are reported, interrupted ones resumed."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lsdflow_command.experiment_lock import experiment_lock, stage_lock
from lsdflow_contract.errors import Interrupted, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.sweep.cli import chosen_runs
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, open_sweep, write_folders
from lsdflow_launch.sweep.merge import Row, row_of
from lsdflow_launch.sweep.run import SweepRunner, exit_code_of

from .conftest import FakeStages

GRID = "[axes]\n'watershed.min_seed_distance_vox' = [4, 6]\n'segment.threshold' = [0.2, 0.4]\n"
SHARED = [("prepare", "base"), ("train-acrlsd", "base"), ("predict", "base")]


@pytest.fixture
def sweep(sweep_file: Callable[[str], Path]) -> SweepFolder:
    """2 x 2 runs, of which two and two share watershed and agglomerate."""
    found = load_sweep(sweep_file(GRID))
    return write_folders(found, found.default_folder)


def fails_at(stage: str, distance: int, code: int) -> Callable[[str, Experiment], int]:
    def fails(called: str, experiment: Experiment) -> int:
        here = experiment.tables["watershed"]["min_seed_distance_vox"]
        return code if (called, here) == (stage, distance) else 0

    return fails


def rows(sweep: SweepFolder) -> list[Row]:
    return [row_of(sweep, run) for run in sweep.plan.runs]


def test_shared_stages_run_once_and_every_run_is_a_finished_experiment(sweep: SweepFolder) -> None:
    fake = FakeStages()
    outcomes = SweepRunner(sweep, fake).run_all(sweep.plan.runs)
    assert set(outcomes.values()) == {"done"}
    assert exit_code_of(outcomes) == 0
    assert sorted(fake.calls) == sorted(
        [
            *SHARED,
            *((s, f"min_seed_distance_vox-{d}") for d in (4, 6) for s in ("watershed", "agglomerate")),
            *((stage, run.name) for run in sweep.plan.runs for stage in ("segment", "evaluate")),
        ]
    )
    for run, row in zip(sweep.plan.runs, rows(sweep), strict=True):
        assert (row.status, row.exit_code) == ("done", 0)
        assert row.scores == {"voi": float(run.at["segment.threshold"])}
        linked = ("prepare", "train-acrlsd", "predict", "watershed", "agglomerate")
        assert set(row.seconds) == {*linked, "segment", "evaluate"}
    again = FakeStages()
    SweepRunner(sweep, again).run_all(sweep.plan.runs)
    assert again.calls == []


def test_a_failed_run_is_reported_and_the_others_are_made(sweep: SweepFolder) -> None:
    fake = FakeStages(fails_at("segment", 6, 79))
    outcomes = SweepRunner(sweep, fake).run_all(sweep.plan.runs)
    assert list(outcomes.values()) == ["done", "done", "failed", "failed"]
    assert exit_code_of(outcomes) == 79
    failed = rows(sweep)[2]
    assert (failed.exit_code, failed.failed_stage, failed.error) == (79, "segment", "segment broke")
    assert failed.scores == {}
    assert set(SweepRunner(sweep, FakeStages()).run_all(sweep.plan.runs).values()) == {"done"}
    assert rows(sweep)[2].status == "done"


def test_a_shared_stage_that_fails_runs_once_and_fails_every_run_behind_it(sweep: SweepFolder) -> None:
    fake = FakeStages(fails_at("agglomerate", 6, 65))
    outcomes = SweepRunner(sweep, fake).run_all(sweep.plan.runs)
    assert list(outcomes.values()) == ["done", "done", "failed", "failed"]
    assert sum(call == ("agglomerate", "min_seed_distance_vox-6") for call in fake.calls) == 1
    assert {(r.failed_stage, r.exit_code) for r in rows(sweep)[2:]} == {("agglomerate", 65)}


def test_an_interrupted_sweep_stops_at_once_and_resumes_where_it_stopped(sweep: SweepFolder) -> None:
    fake = FakeStages(fails_at("segment", 6, 75))
    with pytest.raises(Interrupted):
        SweepRunner(sweep, fake).run_all(sweep.plan.runs)
    assert [row.status for row in rows(sweep)] == ["done", "done", "missing", "missing"]
    assert fake.calls[-1] == ("segment", sweep.plan.runs[2].name)
    again = FakeStages()
    SweepRunner(sweep, again).run_all(sweep.plan.runs)
    assert again.calls == [(s, run.name) for run in sweep.plan.runs[2:] for s in ("segment", "evaluate")]


def begin(experiment: Experiment, stage: str) -> Path:
    """A run of a stage that has begun, and has no outcome."""
    begun = experiment.layout.stage_runs(stage) / "1"
    begun.mkdir(parents=True)
    (begun / "config.resolved.json").write_text("{}")
    return begun


def test_a_run_that_was_killed_is_failed_unless_a_process_is_computing_it(sweep: SweepFolder) -> None:
    SweepRunner(sweep, FakeStages()).run_all(sweep.plan.runs[:1])
    second = load_experiment(sweep.run_folder(sweep.plan.runs[1]))
    assert row_of(sweep, sweep.plan.runs[1]).status == "missing", "not begun"
    begin(second, "segment")
    killed = row_of(sweep, sweep.plan.runs[1])
    assert (killed.status, killed.exit_code, killed.failed_stage) == ("failed", 137, "segment")
    assert "killed" in killed.error
    with experiment_lock(second.layout):
        assert row_of(sweep, sweep.plan.runs[1]).status == "running"
    with stage_lock(second.layout, "segment"):
        assert row_of(sweep, sweep.plan.runs[1]).status == "missing"


def test_a_run_that_the_user_ran_as_an_experiment_is_done(sweep: SweepFolder) -> None:
    first, second = sweep.plan.runs[:2]
    SweepRunner(sweep, FakeStages()).run_all([first])
    by_hand = FakeStages()
    for stage in ("segment", "evaluate"):
        assert by_hand(stage, ["run", "--experiment", str(sweep.run_folder(second) / "experiment.toml")]) == 0
    found = row_of(sweep, second)
    assert (found.status, found.scores) == ("done", {"voi": 0.4})
    again = FakeStages()
    assert SweepRunner(sweep, again).run_all([second]) == {second.name: "done"}
    assert again.calls == []


def test_a_run_at_work_elsewhere_is_skipped_and_reported(sweep: SweepFolder, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeStages()
    with experiment_lock(ExperimentLayout(sweep.run_folder(sweep.plan.runs[0]))):
        outcomes = SweepRunner(sweep, fake).run_all(sweep.plan.runs)
    assert list(outcomes.values()) == ["at work elsewhere", "done", "done", "done"]
    assert exit_code_of(outcomes) == 73
    assert "skipped, at work elsewhere" in caplog.text
    assert sweep.plan.runs[0].name not in {folder for _, folder in fake.calls}


def test_runs_behind_a_busy_shared_folder_come_later(sweep: SweepFolder) -> None:
    first = sweep.plan.runs[0]
    fake, busy = FakeStages(), ExitStack()
    busy.enter_context(experiment_lock(ExperimentLayout(sweep.folder(first.nodes[1]))))
    outcomes = SweepRunner(sweep, fake, wait=lambda _seconds: busy.close()).run_all(sweep.plan.runs)
    assert set(outcomes.values()) == {"done"}
    assert [folder for stage, folder in fake.calls if stage == "watershed"] == [
        "min_seed_distance_vox-6",
        "min_seed_distance_vox-4",
    ]


def _server(root: Path, barrier: Any, log: Path) -> None:
    """One of two servers that make the same part; says in `log` which stages it ran."""
    fake = FakeStages()

    def caller(stage: str, arguments: Sequence[str]) -> int:
        code = fake(stage, arguments)
        with log.open("a") as file:
            file.write(json.dumps(fake.calls[-1]) + "\n")
        return code

    sweep = open_sweep(root)
    barrier.wait()
    SweepRunner(sweep, caller, wait=lambda _seconds: time.sleep(0.01)).run_all(sweep.plan.runs)


@pytest.mark.proves("SWP-05", "TRB-25")
def test_two_processes_with_the_same_part_make_every_stage_once(sweep: SweepFolder, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, log = context.Barrier(2), tmp_path / "calls"
    servers = [context.Process(target=_server, args=(sweep.root, barrier, log)) for _ in range(2)]
    for server in servers:
        server.start()
    for server in servers:
        server.join(60)
    assert [server.exitcode for server in servers] == [0, 0]
    calls = log.read_text().splitlines()
    assert len(calls) == len(set(calls)) == 3 + 4 + 8
    assert {row.status for row in rows(sweep)} == {"done"}
    assert not list(sweep.root.rglob("lock"))


def test_parts_and_conditions_choose_runs(sweep: SweepFolder) -> None:
    def numbers(part: str | None = None, where: Sequence[str] = ()) -> list[int]:
        return [run.number for run in chosen_runs(sweep, part, where)]

    assert (numbers(), numbers("1/2"), numbers("2/2")) == ([1, 2, 3, 4], [1, 3], [2, 4])
    assert numbers(where=["segment.threshold=0.4"]) == [2, 4]
    assert numbers("1/2", ["segment.threshold=0.4"]) == []
    for wrong in ("0/2", "3/2", "half", "1/0"):
        with pytest.raises(UsageError):
            numbers(wrong)
