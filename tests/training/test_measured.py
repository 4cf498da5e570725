"""Some steps of a training are measured in a throw-away folder: their speed, their memory, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import ConfigError, OutputConflict
from lsdflow_train_acrlsd.cli import app
from lsdflow_training import measured
from lsdflow_training.measured import measure_training, steady_speed
from lsdflow_training.testing import micro_experiment


def test_the_speed_is_that_of_the_steps_after_the_first_two(tmp_path: Path) -> None:
    """The first step after 10 s, the second after 12, then two a second; a row of a validation has no speed."""
    times = {1: 10.0, 2: 12.0, 3: 12.5, 4: 13.0, 5: 13.5}
    rows = [f"{n},0.5,{n / s:.12g},1e-4," for n, s in times.items()]
    losses = tmp_path / "loss.csv"
    losses.write_text("\n".join(["iteration,loss,it_per_s,learning_rate,validation_loss", *rows, "5,,,,0.4"]) + "\n")
    assert steady_speed(losses) == pytest.approx(2.0)
    losses.write_text("iteration,loss,it_per_s\n1,0.5,0.1\n")
    assert steady_speed(losses) == pytest.approx(0.1)


def test_steps_are_done_elsewhere_and_the_experiment_stays_as_it_is(
    prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "MOST_STEPS", 4)
    made = prepared("affinities", max_iteration=1000, patience_iterations=5, validation_fraction=0.05)
    before = sorted(tmp_path.rglob("*"))
    steps = measure_training(made, tmp_path / "steps")
    assert (steps["iteration"], steps["device"]) == (4, "cpu")
    assert 0 < steps["it_per_s"] < 1000
    assert steps["peak_rss_mib"] > 100
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "steps" not in (path, *path.parents)] == before
    with pytest.raises(OutputConflict, match="not empty"):
        measure_training(made, tmp_path / "steps")


def test_a_training_with_tensorflow_is_measured_where_tensorflow_is_alone(prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tensorflow"):
        measure_training(prepared("affinities", backend="tensorflow"), tmp_path / "steps")
    assert not (tmp_path / "steps").exists()


def test_the_command_reports_it_as_json(tmp_path: Path) -> None:
    toml = micro_experiment(tmp_path / "experiment", "affinities")
    words = ["measure", "-e", str(toml), "--into", str(tmp_path / "steps"), "--json"]
    done = CliRunner().invoke(app, [*words, "--set", "train-acrlsd.max_iteration=2"])
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)
    assert {"it_per_s", "iteration", "seconds", "peak_rss_mib", "device", "host"} == set(measured)
