"""A few steps of several processes are timed elsewhere: the experiment does not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from lsdflow_contract.errors import ConfigError
from lsdflow_train_acrlsd.cli import app
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.processes.step_times import TimedTrainer


@pytest.mark.proves("DDP-26")
def test_two_processes_are_timed_and_the_experiment_stays_as_it_is(training, tmp_path: Path) -> None:
    toml = training("exp", max_iteration=6).toml
    before = {path: path.read_bytes() for path in toml.parent.rglob("*") if path.is_file()}
    words = ["scaling", "-e", str(toml), "--into", str(tmp_path / "steps"), "--processes", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["samples_per_s"] == pytest.approx(2 * found["it_per_s"])
    assert 0 < found["all_reduce_wait_share"] <= found["all_reduce_share"] < 1
    assert [mib > 100 for mib in found["peak_rss_mib"]] == [True, True]
    assert {path: path.read_bytes() for path in toml.parent.rglob("*") if path.is_file()} == before
    refused = json.loads(CliRunner().invoke(app, words).stdout)
    assert (refused["exit_code"], refused["what"]) == (73, "the folder of the measurement is not empty")


def timed(steps: int, world_size: int) -> TimedTrainer:
    """A trainer after these steps: the first three take 10 s, the others 2 s, the last 100 s.

    Gradients were exchanged for 5 s in each of the first and the last steps, else for 1 s, 0.5 s of them waiting. The
    times of a step are read after the next one.
    """
    trainer = object.__new__(TimedTrainer)
    lengths = [10.0] * 3 + [2.0] * (steps - 4) + [100.0]
    exchange = [(5.0, 5.0)] * 3 + [(1.0, 0.5)] * (steps - 4)
    trainer.group = Group(Ranks(0, world_size))
    trainer.ended = [sum(lengths[: n + 1]) for n in range(steps)]
    trainer.exchanged = [(0.0, 0.0), *exchange]
    return trainer


def test_shares_are_those_of_the_steps_between_the_first_and_the_last() -> None:
    assert timed(9, world_size=2).shares() == {
        "it_per_s": pytest.approx(0.5),
        "all_reduce_share": pytest.approx(0.5),
        "all_reduce_wait_share": pytest.approx(0.25),
    }
    assert timed(9, world_size=1).shares()["all_reduce_share"] == 0


def test_shared_weights_have_no_time_of_an_all_reduce() -> None:
    trainer = timed(9, world_size=2)
    trainer.exchanged = []
    assert trainer.shares()["all_reduce_share"] is None


def test_fewer_steps_than_are_left_out_cannot_be_timed() -> None:
    with pytest.raises(ConfigError, match="too few steps"):
        timed(4, world_size=2).shares()
