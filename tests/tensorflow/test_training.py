"""A training with TensorFlow: torch's training step by step, its resume, its bundle, its stops, its refusals."""

from __future__ import annotations

import csv
import dataclasses
import logging
import os
import signal

import h5py
import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")

import torch  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations, read_best, read_bundle  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError, Interrupted, OutputConflict  # noqa: E402
from lsdflow_contract.layout import ExperimentLayout  # noqa: E402
from lsdflow_contract.manifest import read_manifest  # noqa: E402
from lsdflow_network.bundle import load_bundle, tensors_equal  # noqa: E402
from lsdflow_network.inference import load_network  # noqa: E402
from lsdflow_tensorflow.cluster import (  # noqa: E402
    Cluster,
    shared_among,
)
from lsdflow_tensorflow.engine import Engine  # noqa: E402
from lsdflow_tensorflow.trainer import train  # noqa: E402
from lsdflow_train_acrlsd.cli import app  # noqa: E402
from lsdflow_training import trainer as trainer_module  # noqa: E402
from lsdflow_training import validation  # noqa: E402
from lsdflow_training.snapshots import dataset_names, snapshot_path  # noqa: E402
from lsdflow_training.testing import micro_experiment  # noqa: E402
from lsdflow_training.trainer import train as train_with_torch  # noqa: E402


def run(prepared, folder, how=train, **schedules):
    settings = prepared.settings
    settings = dataclasses.replace(settings, schedules=dataclasses.replace(settings.schedules, **schedules))
    return how(settings, prepared.sources, folder, prepared.key)


def rows(folder):
    with (folder / "loss.csv").open() as file:
        return [(row["iteration"], row["loss"], row["validation_loss"]) for row in csv.DictReader(file)]


def weights(folder, iteration):
    return load_bundle(bundle_folder(folder / "checkpoints", iteration))[1]


def state(folder, iteration):
    return torch.load(bundle_folder(folder / "checkpoints", iteration) / "resume.pt", weights_only=True)


@pytest.fixture
def trained(prepared, tmp_path):
    """Four iterations in one go, with validation; and the training."""
    training = prepared("mtlsd", validation_fraction=0.3, learning_rate=1e-3)
    run(training, tmp_path / "whole", max_iteration=4)
    return training


def test_training_is_that_of_torch_and_torch_resumes_from_it(trained, tmp_path) -> None:
    run(trained, tmp_path / "torch", train_with_torch, max_iteration=4)
    found, wanted = rows(tmp_path / "whole"), rows(tmp_path / "torch")
    assert [row[0] for row in found] == [row[0] for row in wanted] == ["1", "2", "2", "3", "4", "4"]
    for own, expected in zip(found, wanted, strict=True):
        assert [float(v or 0) for v in own[1:]] == pytest.approx([float(v or 0) for v in expected[1:]], rel=1e-4)
    for name, value in weights(tmp_path / "torch", 4).items():
        torch.testing.assert_close(weights(tmp_path / "whole", 4)[name], value, rtol=0, atol=1e-4)
    run(trained, tmp_path / "whole", train_with_torch, max_iteration=5)
    run(trained, tmp_path / "torch", train_with_torch, max_iteration=5)
    for name, value in weights(tmp_path / "torch", 5).items():
        torch.testing.assert_close(weights(tmp_path / "whole", 5)[name], value, rtol=0, atol=1e-4)


def test_a_resumed_training_has_the_same_bits_as_one_in_one_go(trained, tmp_path) -> None:
    for maximum in (1, 4):
        assert run(trained, tmp_path / "parts", max_iteration=maximum).iteration == maximum
    assert tensors_equal(weights(tmp_path / "whole", 4), weights(tmp_path / "parts", 4))
    one, other = (state(tmp_path / folder, 4)["optimizer"]["state"] for folder in ("whole", "parts"))
    assert all(torch.equal(one[index][moment], other[index][moment]) for index in one for moment in one[index])
    losses = [[row[:2] for row in rows(tmp_path / folder) if row[1]] for folder in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_the_bundle_is_read_by_torch_and_says_what_tensorflow_said(trained, tmp_path) -> None:
    best = read_best(tmp_path / "whole" / "best.json")
    assert best.validation_loss is not None
    folder = bundle_folder(tmp_path / "whole" / "checkpoints", 4)
    bundle, network = load_network(folder, "mtlsd")
    assert bundle.training_key == trained.key
    with h5py.File(snapshot_path(tmp_path / "whole" / "snapshots", 4)) as file:
        for name in dataset_names("mtlsd").values():
            assert file[name].shape[-3:]
        raw = torch.from_numpy(file["volumes/raw"][:])[None, None]
        assert abs(file["volumes/affs_gradient"][:]).max() > 0
    from lsdflow_tensorflow.network import UNet

    own = UNet(bundle.unet, bundle.outputs, network.state_dict())(tf.constant(raw.numpy()[..., None][0]))
    with torch.no_grad():
        expected = network(raw)
    for name in bundle.outputs:
        found = torch.from_numpy(own[name].numpy()).movedim(-1, 1)
        torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-5)


def test_tensorboard_has_the_pictures_that_torch_has(trained, tmp_path) -> None:
    run(trained, tmp_path / "torch", train_with_torch, max_iteration=1)
    own, expected = (EventAccumulator(str(tmp_path / name / "log")).Reload() for name in ("whole", "torch"))
    assert set(own.Tags()["images"]) == set(expected.Tags()["images"]) != set()
    assert [event.step for event in own.Images("affs/prediction")] == [1, 2, 4]
    for name in ("raw", "lsds/target", "affs/weight"):
        assert own.Images(name)[0].encoded_image_string == expected.Images(name)[0].encoded_image_string


def test_a_loss_no_better_than_a_constant_answer_is_reported(prepared, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(validation, "SETTLED_ITERATIONS", 1)
    training = prepared("affinities", validation_fraction=0.3)
    with caplog.at_level(logging.WARNING):
        run(training, tmp_path / "t", max_iteration=1, learning_rate=1e-9)
    assert "ignores the image" in caplog.text


def test_a_signal_leaves_a_checkpoint_and_is_resumable(prepared, tmp_path, monkeypatch) -> None:
    training = prepared("affinities", validation_fraction=0.4)
    step = Engine.step

    def stopping(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(Engine, "step", stopping)
    with pytest.raises(Interrupted, match="SIGTERM at iteration 1") as caught:
        run(training, tmp_path / "t", max_iteration=9)
    assert caught.value.exit_code == 75
    monkeypatch.undo()
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [1]
    assert read_bundle(bundle_folder(tmp_path / "t" / "checkpoints", 1)).validation_loss is None
    assert run(training, tmp_path / "t", max_iteration=2).iteration == 2


def test_patches_made_by_processes_are_those_made_here(prepared, tmp_path) -> None:
    for folder, workers in (("none", 0), ("two", 2)):
        training = prepared("affinities", num_workers=workers)
        run(training, tmp_path / folder, max_iteration=2)
    assert tensors_equal(weights(tmp_path / "none", 2), weights(tmp_path / "two", 2))


def test_two_devices_take_two_patches_a_step_as_two_pieces_of_torch(prepared, tmp_path) -> None:
    training = prepared("affinities", learning_rate=1e-3, processes=2)
    assert training.settings.step.effective_batch == 2
    run(training, tmp_path / "two", max_iteration=2)
    pieces = prepared("affinities", learning_rate=1e-3, accumulate=2)
    assert pieces.key == training.key
    run(pieces, tmp_path / "pieces", train_with_torch, max_iteration=2)
    for name, value in weights(tmp_path / "pieces", 2).items():
        torch.testing.assert_close(weights(tmp_path / "two", 2)[name], value, rtol=0, atol=1e-5)


def test_a_loss_that_is_not_finite_ends_the_training_naming_the_iteration(prepared, tmp_path, monkeypatch) -> None:
    training = prepared("affinities")
    to_patch = trainer_module.to_patch

    def with_one_nan(*args):
        patch = to_patch(*args)
        patch.raw[0, 0, 5, 5, 5] = float("nan")
        return patch

    monkeypatch.setattr(trainer_module, "to_patch", with_one_nan)
    with pytest.raises(BadData, match="not finite") as caught:
        run(training, tmp_path / "t", max_iteration=2)
    assert caught.value.where == "iteration 1, batch 1"
    assert "there is no checkpoint yet" in caught.value.fix
    assert not bundle_iterations(tmp_path / "t" / "checkpoints")


def test_weights_that_are_not_finite_are_never_saved(prepared, tmp_path, monkeypatch) -> None:
    step = Engine.step

    def overflowing(engine, patches, number, *args, **kwargs):
        made = step(engine, patches, number, *args, **kwargs)
        if number == 2:
            engine.variables[0].assign(engine.variables[0] * float("inf"))
        return made

    monkeypatch.setattr(Engine, "step", overflowing)
    with pytest.raises(BadData, match="weights are not finite") as caught:
        run(prepared("affinities"), tmp_path / "t", max_iteration=3, checkpoint_every=1)
    assert caught.value.where == "iteration 2, batch 2"
    assert caught.value.fix.endswith("the last checkpoint is that of iteration 1")
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [1]


def test_another_training_here_is_refused(prepared, tmp_path) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", train_with_torch, max_iteration=1)
    with pytest.raises(OutputConflict):
        train(training.settings, training.sources, tmp_path / "t", "another key")


@pytest.mark.parametrize(
    "option",
    [{"precision": "bf16"}, {"optimizer": "adamw"}, {"clip_gradient": 1.0}, {"profile_steps": 1}, {"mlflow": "local"}],
)
def test_what_only_torch_has_is_refused_by_name(prepared, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        shared_among(prepared("affinities", **option).settings, Cluster())


def test_processes_of_tf_config_make_the_step_larger(prepared) -> None:
    settings = prepared("affinities").settings
    cluster = Cluster(("a:1", "b:1"), 0)
    assert shared_among(settings, cluster).step.effective_batch == 2


def test_the_stage_trains_with_tensorflow_and_leaves_its_manifest(tmp_path) -> None:
    toml = micro_experiment(tmp_path, "affinities", {"backend": "tensorflow", "elastic_probability": 0.0})
    for verb in ("validate", "run", "verify"):
        result = CliRunner().invoke(app, [verb, "--experiment", str(toml)])
        assert result.exit_code == 0, result.output
    manifest = read_manifest(ExperimentLayout(tmp_path), "train-acrlsd")
    assert manifest.config["backend"] == "tensorflow"
    assert manifest.facts["iteration"] == 3
