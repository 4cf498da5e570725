"""A training that does not fit in memory, and one whose numbers are not finite: what is reported, what is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError  # noqa: E402
from lsdflow_network.bundle import load_bundle  # noqa: E402
from lsdflow_training import trainer as trainer_module  # noqa: E402
from lsdflow_training.data.nodes import CompactIds  # noqa: E402
from lsdflow_training.trainer import Trainer, train  # noqa: E402

KNOBS = ("input_shape_vox", "num_fmaps", "precision", "checkpoint_activations", "num_workers")


def run(prepared, folder, **schedules):
    settings = dataclasses.replace(
        prepared.settings, schedules=dataclasses.replace(prepared.settings.schedules, **schedules)
    )
    return train(settings, prepared.sources, folder, prepared.key)


def raising(error):
    def failing(*_, **__):
        raise error

    return failing


@pytest.mark.proves("TLS-26", "TRB-01")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand pages more"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_step_that_does_not_fit_in_memory_names_the_options_that_take_less(
    prepared, tmp_path, monkeypatch, error
) -> None:
    monkeypatch.setattr(trainer_module, "train_step", raising(error))
    with pytest.raises(ConfigError, match="does not fit in memory") as caught:
        run(prepared("affinities"), tmp_path / "t")
    assert all(option in caught.value.fix for option in KNOBS)
    assert caught.value.found in (str(error).splitlines() or ["MemoryError"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_patch_that_does_not_fit_in_memory_is_the_same_error(prepared, tmp_path, monkeypatch, workers) -> None:
    monkeypatch.setattr(CompactIds, "process", raising(MemoryError("Unable to allocate 9 GiB")))
    with pytest.raises(ConfigError, match="does not fit in memory") as caught:
        run(prepared("affinities", num_workers=workers), tmp_path / "t")
    assert caught.value.where == "making batch 1"
    assert "num_workers" in caught.value.fix


def test_other_faults_of_a_step_are_not_called_memory(prepared, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trainer_module, "train_step", raising(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(prepared("affinities"), tmp_path / "t")


def see_nan_from(monkeypatch, iteration: int) -> None:
    """Raw data are NaN in this iteration and all later ones."""
    to_patch, seen = trainer_module.to_patch, []

    def spoilt(*args):
        seen.append(1)
        patch = to_patch(*args)
        return dataclasses.replace(patch, raw=patch.raw * np.nan) if len(seen) >= iteration else patch

    monkeypatch.setattr(trainer_module, "to_patch", spoilt)


@pytest.mark.proves("TRB-03")
def test_a_loss_that_is_not_finite_names_its_batches_and_the_last_checkpoint_that_there_is(
    prepared, tmp_path, monkeypatch
) -> None:
    """That of iteration 1 is not one of those every 2 iterations: the run before ended there."""
    training = prepared("affinities", accumulate=2)
    run(training, tmp_path / "t", max_iteration=1)
    see_nan_from(monkeypatch, 1)
    with pytest.raises(BadData, match="loss is not finite") as caught:
        run(training, tmp_path / "t", max_iteration=4)
    assert caught.value.where == "iteration 2, batches 3, 4"
    assert caught.value.fix.endswith("the last checkpoint is that of iteration 1")


def overflow_in_step(monkeypatch, iteration: int) -> None:
    """The loss of this iteration is finite; the weights after it are not."""
    step, taken = trainer_module.train_step, []

    def overflowing(network, *args, **kwargs):
        result = step(network, *args, **kwargs)
        taken.append(1)
        if len(taken) == iteration:
            next(network.parameters()).data.view(-1)[0] = float("inf")
        return result

    monkeypatch.setattr(trainer_module, "train_step", overflowing)


@pytest.mark.parametrize("last", [4, 9])
def test_weights_that_are_not_finite_are_never_saved(prepared, tmp_path, monkeypatch, last) -> None:
    """At the last iteration and before it; the checkpoint before stays the newest, and a training resumes from it."""
    training = prepared("affinities", learning_rate=1e-3)
    overflow_in_step(monkeypatch, 4)
    with pytest.raises(BadData, match="weights are not finite") as caught:
        run(training, tmp_path / "t", max_iteration=last)
    assert caught.value.where == "iteration 4, batch 4"
    assert caught.value.fix.endswith("the last checkpoint is that of iteration 2")
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [2]
    monkeypatch.undo()
    assert run(training, tmp_path / "t", max_iteration=4).iteration == 4
    weights = load_bundle(bundle_folder(tmp_path / "t" / "checkpoints", 4))[1]
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_a_training_that_goes_wrong_at_once_says_that_there_is_no_checkpoint(prepared, tmp_path) -> None:
    training = prepared("affinities")
    made = Trainer(training.settings, training.sources, tmp_path / "t", training.key, None)
    with torch.no_grad():
        made.trained.heads["affs"].bias.fill_(float("nan"))
    with pytest.raises(BadData, match="loss is not finite") as caught:
        made.run()
    assert caught.value.where == "iteration 1, batch 1"
    assert caught.value.fix.endswith("there is no checkpoint yet")
    assert not bundle_iterations(tmp_path / "t" / "checkpoints")
