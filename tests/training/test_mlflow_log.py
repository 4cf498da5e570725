"""The option `mlflow`: one run for a training in a real file store, and no training suffers from it."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")

from typer.testing import CliRunner

from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_contract.errors import BadData, ConfigError, Interrupted
from lsdflow_train_lsd.cli import app
from lsdflow_training import mlflow_log
from lsdflow_training.mlflow_log import MlflowLog, RunFacts, checked_uri, import_mlflow, parameters, tracking_uri
from lsdflow_training.run import Training
from lsdflow_training.testing import micro_experiment
from lsdflow_training.trainer import train

installed = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="make setup-mlflow installs it")


def run(made: Training, folder: Path, **schedules) -> None:
    settings = dataclasses.replace(made.settings, schedules=dataclasses.replace(made.settings.schedules, **schedules))
    train(settings, made.sources, folder, made.key)


def the_run(folder: Path):
    """The only run of the file store beside a training's folder, and the client."""
    client = import_mlflow().MlflowClient(tracking_uri=tracking_uri("local", folder))
    experiment = client.get_experiment_by_name("lsdflow")
    (found,) = client.search_runs([experiment.experiment_id])
    return found, client


def curve(folder: Path, column: int) -> list[tuple[int, str]]:
    """Iterations and values of a column of loss.csv."""
    rows = [row.split(",") for row in (folder / "loss.csv").read_text().splitlines()[1:]]
    return [(int(row[0]), row[column]) for row in rows if row[column]]


def test_with_mlflow_patches_are_made_by_another_process(prepared) -> None:
    """Its client draws from the random numbers of the training's process: for the id of a new experiment, say."""
    assert prepared("mtlsd", num_workers=0, mlflow="local").settings.num_workers == 1
    assert prepared("mtlsd", num_workers=0).settings.num_workers == 0
    assert prepared("mtlsd", num_workers=3, mlflow="local").settings.num_workers == 3


@installed
def test_a_training_and_its_resumption_are_one_run_with_the_points_of_the_curves(prepared, tmp_path) -> None:
    options = {"schedule": "constant", "validation_fraction": 0.3}
    plain, logged = prepared("mtlsd", **options), prepared("mtlsd", mlflow="local", **options)
    assert plain.key == logged.key
    folder = tmp_path / "results" / "t" / "key"
    run(plain, tmp_path / "plain", max_iteration=5, validation_every=1)
    run(logged, folder, max_iteration=3, validation_every=1)
    shutil.rmtree(bundle_folder(folder / "checkpoints", 3))  # as if it had been killed: resumes from iteration 2
    run(logged, folder, max_iteration=5, validation_every=1)
    assert curve(folder, 1) == curve(tmp_path / "plain", 1)
    found, client = the_run(folder)
    for name, column in (("loss", 1), ("learning_rate", 3), ("validation_loss", 4)):
        points = client.get_metric_history(found.info.run_id, name)
        wanted = curve(folder, column)
        assert [point.step for point in points] == [iteration for iteration, _ in wanted]
        assert [point.value for point in points] == pytest.approx([float(v) for _, v in wanted], rel=1e-3)
    assert {"loss_lsds", "loss_affs", "it_per_s"} <= set(found.data.metrics)
    tags = found.data.tags
    assert (tags["stage"], tags["training_key"]) == ("train-acrlsd", logged.key)
    assert (tags["ended_by"], tags["iteration"]) == ("max_iteration", "5")
    assert {"experiment", "contract"} <= set(tags)
    assert found.data.params["targets.sigma_nm"] == "[24.0, 24.0, 24.0]"
    assert found.data.params["schedules.max_iteration"] == "3"
    assert tags["changed.schedules.max_iteration"] == "5"
    assert found.info.status == "FINISHED"


@installed
@pytest.mark.parametrize(
    ("reason", "error", "status"),
    [("plateau", None, "FINISHED"), (None, None, "KILLED"), (None, Interrupted("x"), "KILLED"),
     (None, BadData("no"), "FAILED")],
)  # fmt: skip
def test_the_run_says_how_the_training_ended(tmp_path, reason, error, status) -> None:
    log = MlflowLog("local", tmp_path / "results" / "t" / "key", RunFacts("key", "n", {}, {}), lambda: (reason, 7))
    log.add(7, {"loss": 0.5})
    log.close(error)
    found, _ = the_run(tmp_path / "results" / "t" / "key")
    assert (found.info.status, found.data.metrics, found.data.tags["iteration"]) == (status, {"loss": 0.5}, "7")


@installed
def test_a_server_that_does_not_answer_is_one_warning_and_no_delay(prepared, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    import_mlflow()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = prepared("affinities", mlflow=f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        run(made, tmp_path / "t", max_iteration=3)
        assert time.monotonic() - begun < 30
    assert len(curve(tmp_path / "t", 1)) == 3
    (warning,) = [message for message in caplog.messages if "MLflow" in message]
    assert "continues without" in warning


@pytest.mark.parametrize(
    ("uri", "word"),
    [("http://me:secret@host:5000", "MLFLOW_TRACKING_PASSWORD"), ("https://host/?token=secret", "query"),
     ("http://", "local"), ("file:mlruns", "local"), ("sqlite:///secret.db", "local"), ("me:secret@host", "local"),
     ("http://host:secret", "local"), ("", "local")],
)  # fmt: skip
def test_other_addresses_and_passwords_in_them_are_refused_without_showing_them(uri, word) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        checked_uri(uri)
    assert "secret" not in str(caught.value)


def test_without_mlflow_the_option_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mlflow_log.importlib.util, "find_spec", lambda name: None)
    toml = micro_experiment(tmp_path, options={"mlflow": "local"})
    for verb in ("validate", "run"):
        result = CliRunner().invoke(app, [verb, "--experiment", str(toml)])
        assert result.exit_code == 78
        assert "make setup-mlflow" in result.output
    assert not (tmp_path / "train").exists()


def test_parameters_are_flat_and_short_and_have_no_address(prepared) -> None:
    found = parameters(prepared("mtlsd", mlflow="https://host").settings)
    assert found["unet.num_fmaps"] == "2"
    assert not [name for name in found if name.startswith("records")]
    assert max(map(len, found.values())) <= 500
    assert len(found) < 120


def test_parameters_have_the_names_of_the_settings(prepared) -> None:
    options = {"patience_iterations": 5, "average_decay": 0.5, "validation_fraction": 0.4}
    found = parameters(prepared("mtlsd", **options).settings)
    assert (found["early_stopping.patience"], found["average_decay"]) == ("5", "0.5")
    assert {"schedules.max_iteration", "step.accumulate", "distribution.processes", "targets.sigma_nm"} <= found.keys()
