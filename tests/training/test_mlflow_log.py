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
from lsdflow_training.mlflow_log import MlflowLog, checked_uri, import_mlflow, parameters, tracking_uri
from lsdflow_training.run import Training
from lsdflow_training.settings import InitialWeights
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


@pytest.mark.proves("MON-02")
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
        points = {point.step: point.value for point in client.get_metric_history(found.info.run_id, name)}
        assert points == pytest.approx({step: float(value) for step, value in curve(folder, column)}, rel=1e-3)
    assert {"loss_lsds", "loss_affs", "it_per_s"} <= set(found.data.metrics)
    tags = found.data.tags
    assert (tags["stage"], tags["training_key"]) == ("train-acrlsd", logged.key)
    assert (found.info.status, tags["ended_by"]) == ("FINISHED", "max_iteration")
    assert found.data.params["targets.sigma_nm"] == "(24.0, 24.0, 24.0)"
    assert found.data.params["schedules.max_iteration"] == "3"


@installed
@pytest.mark.parametrize(
    ("reason", "error", "status", "tag"),
    [("plateau", None, "FINISHED", "plateau"), (None, None, "KILLED", "interrupted"),
     (None, Interrupted("x"), "KILLED", "interrupted"), (None, BadData("no"), "FAILED", "BadData: no")],
)  # fmt: skip
def test_the_run_says_how_the_training_ended(prepared, tmp_path, reason, error, status, tag) -> None:
    folder = tmp_path / "results" / "t" / "key"
    log = MlflowLog(prepared("affinities", mlflow="local").settings, folder, "key", lambda: reason)
    log.add(7, {"loss": 0.5})
    log.close(error)
    found, _ = the_run(folder)
    assert (found.info.status, found.data.tags["ended_by"], found.data.metrics) == (status, tag, {"loss": 0.5})


@installed
def test_a_run_that_was_deleted_is_followed_by_a_new_one(prepared, tmp_path) -> None:
    folder = tmp_path / "results" / "t" / "key"
    for _ in range(2):
        log = MlflowLog(prepared("affinities", mlflow="local").settings, folder, "key", lambda: "plateau")
        log.add(7, {"loss": 0.5})
        log.close(None)
        found, client = the_run(folder)
        client.delete_run(found.info.run_id)


@installed
def test_a_server_that_fails_when_a_training_is_resumed_gets_no_second_run(
    prepared, tmp_path, caplog, monkeypatch
) -> None:
    folder = tmp_path / "results" / "t" / "key"
    mlflow = import_mlflow()

    def failing(*_: object, **__: object) -> None:
        msg = "the database is busy"
        raise mlflow.MlflowException(msg)

    for _ in range(2):
        log = MlflowLog(prepared("affinities", mlflow="local").settings, folder, "key", lambda: "plateau")
        log.add(7, {"loss": 0.5})
        log.close(None)
        the_run(folder)
        monkeypatch.setattr(mlflow.MlflowClient, "update_run", failing)
    assert "the database is busy" in caplog.text


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
    "uri",
    ["http://me:secret@host:5000", "https://host/?token=secret", "http://", "file:mlruns", "sqlite:///secret.db",
     "file://host/secret", "me:secret@host", "http://host:secret", "http://host\n", ""],
)  # fmt: skip
def test_other_addresses_and_passwords_in_them_are_refused_without_showing_them(uri) -> None:
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        checked_uri(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", [None, "local", "http://127.0.0.1:5000", "https://a-b.example.org/m", "http://[::1]:5000", "file:///a b/c"]
)
def test_local_servers_and_folders_are_accepted(uri) -> None:
    assert checked_uri(uri) == uri


def test_without_mlflow_the_option_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mlflow_log.importlib.util, "find_spec", lambda name: None)
    toml = micro_experiment(tmp_path, options={"mlflow": "local"})
    for verb in ("validate", "run"):
        result = CliRunner().invoke(app, [verb, "--experiment", str(toml)])
        assert result.exit_code == 78
        assert "make setup-mlflow" in result.output
    assert not (tmp_path / "train").exists()


def test_parameters_are_the_flat_settings_without_any_address(prepared, tmp_path) -> None:
    options = {"patience_iterations": 5, "average_decay": 0.5, "validation_fraction": 0.4}
    settings = prepared("mtlsd", mlflow="https://host", **options).settings
    found = parameters(dataclasses.replace(settings, initial=InitialWeights(tmp_path, "0" * 64)))
    assert (found["patience"], found["average_decay"], found["unet.num_fmaps"]) == ("5", "0.5", "2")
    names = {"schedules.max_iteration", "step.accumulate", "distribution.processes", "targets.sigma_nm"}
    assert names | {"initial.sha256"} <= found.keys()
    assert not [name for name in found if name.startswith("records")]
