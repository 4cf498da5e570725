"""What `lsdflow status` adds from the files of runs: alive or dead, speed, attempts, last activity, log; a table."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lsdflow_command.attempts import AttemptLog
from lsdflow_command.lock_file import Holder
from lsdflow_command.processes import pid_namespace
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.status import cells, more_lines, show_status, status_of, with_activity

BEGUN = {"state": "running or killed", "blocks": 40, "blocks_done": 3, "failed": 1}
OF_EARLIER_RUN = "20\t1000.0\tkey\t\tdone\t1.0\t1.0\t1\t1\t1\t1\t\t0\t\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "experiment.toml").write_text('[experiment]\nmode = "mtlsd"\n')
    return load_experiment(tmp_path)


def begin(
    experiment: Experiment, stage: str, name: str, config: Any = None, outcome: Any = None, ago_s: float = 0
) -> Path:
    """A run that began so many seconds ago, and has ended if it has an outcome."""
    folder = experiment.layout.stage_runs(stage) / name
    folder.mkdir(parents=True)
    (folder / "config.resolved.json").write_text(json.dumps({"config": config or {}}))
    (folder / "log.txt").write_text("begun\n")
    for path in folder.iterdir():
        os.utime(path, (time.time() - ago_s,) * 2)
    if outcome is not None:
        (folder / "outcome.json").write_text(json.dumps(outcome))
    return folder


def take_lock(experiment: Experiment, stage: str, pid: int, age_s: float = 0) -> None:
    path = experiment.layout.stage_runs(stage) / "lock"
    holder = Holder("id", socket.gethostname(), pid, namespace=pid_namespace())
    path.write_text(json.dumps({"id": holder.id, "host": holder.host, "pid": pid, "job": ""}))
    os.utime(path, (time.time() - age_s,) * 2)


def test_a_run_with_a_living_coordinator_is_running_and_one_whose_process_is_gone_was_killed(
    experiment: Experiment,
) -> None:
    begin(experiment, "watershed", "20260101T000000-1")
    take_lock(experiment, "watershed", os.getpid())
    living = with_activity(experiment, "watershed", BEGUN)
    now = living["last_activity"] + 5
    assert (living["alive"], cells(living, now)[0]) == (True, "running (last sign 5 s ago)")
    take_lock(experiment, "watershed", os.getpid(), age_s=3600)
    dead = with_activity(experiment, "watershed", BEGUN)
    assert (dead["alive"], cells(dead, now)[0]) == (False, "killed (last sign 5 s ago)")
    assert dead["state"] == "running or killed", "--json keeps its earlier keys"


def test_blocks_that_were_tried_again_are_counted_and_give_the_speed(experiment: Experiment) -> None:
    begin(experiment, "watershed", "20260101T000000-1", ago_s=120)
    with AttemptLog(experiment.layout.stage_runs("watershed"), "key") as log:
        for block in (0, 1, 2):
            with log.attempt(block):
                pass
        for _ in range(3):
            with pytest.raises(RuntimeError), log.attempt(7):
                raise RuntimeError
        # Done by an earlier run: neither this run's speed nor a second attempt.
        os.write(os.open(log.path, os.O_WRONLY | os.O_APPEND), OF_EARLIER_RUN.encode())
    found = with_activity(experiment, "watershed", BEGUN)
    assert found["retried"] == 2
    # three blocks in two minutes, 37 are left
    assert found["blocks_per_minute"] == pytest.approx(1.5, rel=0.05)
    assert found["minutes_left"] == pytest.approx(37 / 1.5, rel=0.05)
    assert time.time() - found["last_activity"] < 30


def test_status_says_why_a_block_was_tried_again(experiment: Experiment) -> None:
    begin(experiment, "watershed", "20260101T000000-1")
    with AttemptLog(experiment.layout.stage_runs("watershed"), "key") as log:
        for _ in range(3):
            with pytest.raises(MemoryError), log.attempt(7):
                raise MemoryError
    # The process of another node was lost in block 9, which this one then computed.
    lost = log.path.with_name("20260101T000000-4711-n2.tsv")
    lost.write_text("9\t1000.0\tkey\t")
    with AttemptLog(experiment.layout.stage_runs("watershed"), "key") as log, log.attempt(9):
        pass
    found = with_activity(experiment, "watershed", BEGUN)
    where = f"worker {os.getpid()} on {socket.gethostname()}"
    assert list(more_lines("watershed", found))[:2] == [
        "watershed: block 9 was tried again: worker 4711 on n2 was lost",
        f"watershed: block 7 was tried again: MemoryError in {where}, 2 times",
    ]
    assert found["retried"] == 3


def test_a_training_reports_iterations_speed_and_time_left(experiment: Experiment) -> None:
    begin(experiment, "train-acrlsd", "20260101T000000-1", {"max_iteration": 1000})
    losses = experiment.layout.train_dir("train-acrlsd") / "loss.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text("iteration,loss,it_per_s\n1,0.3,0.5\n400,0.2,2.0\n")
    found = with_activity(experiment, "train-acrlsd", {"state": "running or killed"})
    assert (found["iterations_done"], found["iterations_wanted"]) == (400, 1000)
    assert found["minutes_left"] == 5.0
    assert cells(found, time.time())[1:6] == ("400/1000 it", "", "", "2 it/s", "5 min")


@pytest.mark.parametrize("config", [{}, {"max_iteration": None, "max_minutes": 5.0}])
def test_a_training_counts_to_the_total_of_its_profile_and_a_row_of_a_validation_hides_nothing(
    experiment: Experiment, config: dict[str, Any]
) -> None:
    begin(experiment, "train-acrlsd", "20260101T000000-1", config)
    losses = experiment.layout.train_dir("train-acrlsd") / "loss.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text("iteration,loss,it_per_s,learning_rate,validation_loss\n120,0.2,2.0,1e-4,\n120,,,,0.3\n")
    found = with_activity(experiment, "train-acrlsd", {"state": "running or killed", "max_iteration": 800})
    assert cells(found, time.time())[1] == "120/800 it"
    assert found["minutes_left"] == pytest.approx(4.0 if config else 680 / 2 / 60, abs=0.1), "max_minutes ends it"


def test_a_training_that_ended_early_is_finished_but_not_to_its_total_and_says_why(experiment: Experiment) -> None:
    facts = {"iteration": 56, "max_iteration": 800, "ended_by": "max_minutes", "it_per_s": 1.0, "seconds": 60.0}
    writer = Writer(stage="train-acrlsd", version="1")
    learnt = {"loss_begin": 0.5, "loss_end": 0.49}
    manifest = Manifest(
        writer=writer, key="k", config={}, inputs={}, outputs={}, facts={**facts, **learnt}, identity="i"
    )
    manifest.write(experiment.layout)
    found = status_of(experiment, lambda *_: {"exit_code": 66})["train-acrlsd"]
    assert (found["state"], cells(found, time.time())[1]) == ("finished", "56/800 it")
    why = "trained 7 % of its iterations (56 of 800), ended by max_minutes; the loss hardly fell (0.5 to 0.49)"
    assert list(more_lines("train-acrlsd", found)) == [f"train-acrlsd: {why}"]


def test_a_run_that_began_after_one_that_failed_is_what_status_reports(experiment: Experiment) -> None:
    failed = {"exit_code": 74, "error": {"what": "disk full"}}
    begin(experiment, "watershed", "20260101T000000-1", outcome=failed)
    answer = status_of(experiment, lambda *_: {"exit_code": 66})["watershed"]
    assert (answer["state"], answer["problem"]) == ("ended with exit code 74", "disk full")
    newer = begin(experiment, "watershed", "20260102T000000-1")
    assert status_of(experiment, lambda *_: {"exit_code": 66})["watershed"]["state"] == "running or killed"
    assert with_activity(experiment, "watershed", BEGUN)["log"] == str(newer / "log.txt")


def test_a_stage_that_has_not_begun_has_only_what_is_planned(experiment: Experiment) -> None:
    assert with_activity(experiment, "segment", {"state": "not started"}) == {"state": "not started"}
    planned = {"share_left": 1.0, "walltime_s": {"value": 90.0, "from": "one block"}}
    (experiment.layout.root / "plan.json").write_text(json.dumps({"stages": {"segment": planned}}))
    found = with_activity(experiment, "segment", {"state": "not started"})
    assert found == {"state": "not started", "planned_seconds": 90.0}
    (experiment.layout.root / "plan.json").write_text("torn")
    assert with_activity(experiment, "segment", {"state": "not started"}) == {"state": "not started"}


def test_the_table_shows_every_stage_and_below_it_why_and_where_the_log_is() -> None:
    output = io.StringIO()
    failed = {**BEGUN, "state": "ended with exit code 79", "problem": "1 of 40 blocks", "log": "/a/log.txt"}
    failed |= {"failures": {"7": "out of memory [7]"}, "retried": 4, "seconds": 100.0, "planned_seconds": 50.0}
    show_status({"watershed": failed, "segment": {"state": "not started"}}, Console(file=output, width=200))
    lines = output.getvalue().splitlines()
    assert lines[0].split()[:5] == ["stage", "state", "done", "failed", "retried"], lines[0]
    assert lines[1].startswith("watershed  ended with exit code 79")
    assert "3/40 " in lines[1]
    assert lines[1].split()[-4:] == ["100", "s", "50", "s"]
    assert lines[2].split() == ["segment", "not", "started"]
    below = ["watershed: 1 of 40 blocks", "watershed: block 7: out of memory [7]", "watershed log: /a/log.txt"]
    assert lines[3:] == below
