"""When a training ends by itself, averaged weights, and what users see of a training: validations and pictures."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from lsdflow_contract.arrays import MASK  # noqa: E402
from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations, read_best, read_bundle  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError, Interrupted, OutputConflict  # noqa: E402
from lsdflow_network.bundle import load_bundle, tensors_equal  # noqa: E402
from lsdflow_training import trainer as trainer_module  # noqa: E402
from lsdflow_training import validation  # noqa: E402
from lsdflow_training.checkpoints import read_state  # noqa: E402
from lsdflow_training.checks import training_problems  # noqa: E402
from lsdflow_training.run import Training, TrainingResult, run_training  # noqa: E402
from lsdflow_training.testing import write_zarr2  # noqa: E402
from lsdflow_training.trainer import train  # noqa: E402
from lsdflow_training.validation import verdict  # noqa: E402

DECAY = 0.6
PATIENCE = 300


def run(made: Training, folder: Path, patience: int | None = None, **schedules) -> TrainingResult:
    settings = dataclasses.replace(made.settings, schedules=dataclasses.replace(made.settings.schedules, **schedules))
    if patience is not None:
        settings = dataclasses.replace(settings, patience=patience or None)
    return train(settings, made.sources, folder, made.key)


def validations(folder: Path) -> dict[str, str]:
    """Iteration -> validation loss as written in loss.csv; an iteration twice is an error."""
    rows = [row.split(",") for row in (folder / "loss.csv").read_text().splitlines()[1:]]
    found = [(row[0], row[-1]) for row in rows if row[-1]]
    assert len(dict(found)) == len(found)
    return dict(found)


def weights(folder: Path, iteration: int) -> dict[str, torch.Tensor]:
    return load_bundle(bundle_folder(folder / "checkpoints", iteration))[1]


def test_the_bundle_has_the_average_of_the_weights_and_training_resumes_from_the_last(prepared, tmp_path) -> None:
    plain, averaging = prepared("affinities"), prepared("affinities", average_decay=DECAY)
    options = {"max_iteration": 4, "checkpoint_every": 1, "keep_checkpoints": 0}
    run(plain, tmp_path / "plain", **options)
    run(averaging, tmp_path / "averaged", **options)
    torch.manual_seed(plain.settings.seed)
    average = None
    for iteration in range(1, 5):
        last = weights(tmp_path / "plain", iteration)
        folder = bundle_folder(tmp_path / "averaged" / "checkpoints", iteration)
        assert tensors_equal(read_state(folder / "resume.pt").weights, last)
        found, decay = weights(tmp_path / "averaged", iteration), min(DECAY, (1 + iteration) / (10 + iteration))
        if average is not None:
            expected = {name: decay * average[name] + (1 - decay) * value for name, value in last.items()}
            assert all(torch.allclose(found[name], expected[name], atol=1e-7) for name in expected)
        assert not tensors_equal(found, last)
        average = found


def test_a_resumed_training_with_an_average_has_the_bits_of_an_uninterrupted_one(prepared, tmp_path) -> None:
    made = prepared("affinities", schedule="constant", average_decay=DECAY)
    run(made, tmp_path / "whole", max_iteration=4)
    for maximum in (1, 3, 4):
        run(made, tmp_path / "parts", max_iteration=maximum)
    assert tensors_equal(weights(tmp_path / "whole", 4), weights(tmp_path / "parts", 4))


def test_an_average_makes_another_training(prepared, tmp_path) -> None:
    run(prepared("affinities"), tmp_path / "t", max_iteration=1)
    with pytest.raises(OutputConflict):
        run(prepared("affinities", average_decay=DECAY), tmp_path / "t", max_iteration=2)


def test_without_an_average_the_state_has_no_weights_and_the_key_is_that_of_before(prepared, tmp_path) -> None:
    held_out = {"validation_fraction": 0.4}
    made = prepared("affinities", **held_out)
    patient = prepared("affinities", patience_iterations=5, **held_out)
    run(made, tmp_path / "t", max_iteration=1)
    assert read_state(bundle_folder(tmp_path / "t" / "checkpoints", 1) / "resume.pt").weights == {}
    assert made.key == patient.key != prepared("affinities", average_decay=DECAY, **held_out).key


def test_patience_without_held_out_data_is_refused_by_validate_and_run(prepared) -> None:
    made = prepared("affinities", patience_iterations=5)
    (found,) = training_problems(made.experiment, made.config, "train-acrlsd", "affinities")
    assert isinstance(found, ConfigError)
    assert found.where == "train-acrlsd.patience_iterations"
    assert found.fix.startswith("set validation_fraction = 0.05")
    with pytest.raises(ConfigError, match="no validation loss"):
        run_training(made)
    assert not made.folder.exists()
    holds_out = prepared("affinities", patience_iterations=5, validation_fraction=0.05)
    assert training_problems(holds_out.experiment, holds_out.config, "train-acrlsd", "affinities") == []


def test_a_training_without_progress_ends_in_order_and_continues_with_more_patience(prepared, tmp_path) -> None:
    made = prepared("affinities", validation_fraction=0.4)
    how = {"learning_rate": 1e-9, "validation_every": 2, "checkpoint_every": 100, "schedule": "constant"}
    ended = run(made, tmp_path / "t", 4, max_iteration=30, **how)
    assert (ended.iteration, ended.ended_by) == (6, "plateau")
    assert (tmp_path / "t" / "snapshots" / "batch_6.hdf").exists(), "the last iteration can be seen"
    bundle = read_bundle(bundle_folder(tmp_path / "t" / "checkpoints", 6))
    assert bundle.validation_loss is not None
    assert run(made, tmp_path / "t", 4, max_iteration=30, **how).iteration == 6
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [6]
    ended = run(made, tmp_path / "t", 8, max_iteration=8, **how)
    assert (ended.iteration, ended.ended_by) == (8, "max_iteration")


def test_patience_with_held_out_sections_that_nobody_labelled_is_refused(prepared, tmp_path) -> None:
    made = prepared("affinities", patience_iterations=5, validation_fraction=0.1)
    volume, states = made.sources[0].volume, np.ones((40, 40, 40), np.uint8)
    states[-4:] = 0
    write_zarr2(volume.path, MASK.dataset, states, volume.voxel_size_nm, (0.0, 0.0, 0.0))
    with pytest.raises(BadData, match="selects no labelled voxels"):
        run(made, tmp_path / "t", max_iteration=1)
    assert run(made, tmp_path / "t", 0, max_iteration=1).iteration == 1


def test_each_iteration_is_validated_once(prepared, tmp_path) -> None:
    made = prepared("affinities", validation_fraction=0.4)
    run(made, tmp_path / "t", max_iteration=4, validation_every=2, checkpoint_every=100)
    assert list(validations(tmp_path / "t")) == ["2", "4"]


def test_an_interruption_adds_no_validation_and_no_candidate_for_the_best(prepared, tmp_path, monkeypatch) -> None:
    made, step = prepared("affinities", validation_fraction=0.4), trainer_module.train_step
    how = {"validation_every": 2, "checkpoint_every": 4, "max_iteration": 6, "schedule": "constant"}
    run(made, tmp_path / "whole", **how)
    for interrupted_at in (3, 2):
        folder, steps = tmp_path / f"cut at {interrupted_at}", []

        def stopping(*args, steps=steps, last=interrupted_at, **kwargs):
            steps.append(1)
            if len(steps) == last:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(*args, **kwargs)

        monkeypatch.setattr(trainer_module, "train_step", stopping)
        with pytest.raises(Interrupted):
            run(made, folder, **how)
        monkeypatch.undo()
        cut = read_bundle(bundle_folder(folder / "checkpoints", interrupted_at))
        assert (cut.validation_loss is None) == (interrupted_at == 3)
        run(made, folder, **how)
        assert validations(folder) == validations(tmp_path / "whole")
        assert read_best(folder / "best.json") == read_best(tmp_path / "whole" / "best.json")


@pytest.mark.proves("MON-01")
def test_tensorboard_has_pictures_of_targets_predictions_and_weights(prepared, tmp_path) -> None:
    run(prepared("mtlsd"), tmp_path / "t", max_iteration=2, snapshot_every=2)
    board = EventAccumulator(str(tmp_path / "t" / "log")).Reload()
    wanted = {f"{name}/{what}" for name in ("lsds", "affs") for what in ("target", "prediction", "weight")}
    assert set(board.Tags()["images"]) == {"raw", *wanted}
    assert [event.step for event in board.Images("raw")] == [1, 2]


def test_a_loss_no_better_than_a_constant_answer_is_reported(prepared, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(validation, "SETTLED_ITERATIONS", 1)
    made = prepared("affinities", validation_fraction=0.4)
    with caplog.at_level(logging.WARNING):
        run(made, tmp_path / "t", max_iteration=1, learning_rate=1e-9)
    assert "ignores the image" in caplog.text


def curve(*values: float) -> dict[int, float]:
    return {100 * (number + 1): value for number, value in enumerate(values)}


FALLING = curve(*(1.0 / n for n in range(1, 12)))
FLAT = curve(*[0.5] * 11)


@pytest.mark.proves("TLS-22")
@pytest.mark.parametrize(
    ("validations", "losses", "wanted"),
    [
        (curve(1.0, 0.8, 0.6, 0.5, 0.4), FALLING, "continue"),
        (curve(1.0, 0.5, 0.499, 0.4985, 0.498), FALLING, "plateau"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.8), FALLING, "overfit"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.8), FLAT, "plateau"),
        (curve(1.0, 0.5, 0.6, 0.7, 0.49), FALLING, "continue"),
        (curve(1.0, 1.0, 1.0), FALLING, "continue"),
        ({}, FALLING, "continue"),
    ],
)
def test_a_training_ends_when_no_validation_within_the_patience_is_better(validations, losses, wanted) -> None:
    assert verdict(validations, losses, PATIENCE) == wanted


def test_without_patience_a_training_continues_whatever_its_curve() -> None:
    assert verdict(curve(*[1.0] * 50), FALLING, None) == "continue"


def test_the_verdict_does_not_depend_on_the_order_in_which_the_curve_was_read() -> None:
    validations = curve(1.0, 0.5, 0.6, 0.7, 0.8)
    assert verdict(dict(reversed(validations.items())), FALLING, PATIENCE) == verdict(validations, FALLING, PATIENCE)
