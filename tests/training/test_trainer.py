"""The training loop on a micro volume: resume, checkpoints, curves, interruption."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

from lsdflow_command.interruption import interrupt_on_signals  # noqa: E402
from lsdflow_contract.checkpoint import (  # noqa: E402
    bundle_folder,
    bundle_iterations,
    read_best,
    read_bundle,
)
from lsdflow_contract.errors import BadData, Interrupted, OutputConflict  # noqa: E402
from lsdflow_network.bundle import load_bundle, tensors_equal  # noqa: E402
from lsdflow_network.composition import AcrLsd  # noqa: E402
from lsdflow_network.inference import load_network, load_predictor  # noqa: E402
from lsdflow_training import trainer as trainer_module  # noqa: E402
from lsdflow_training.checkpoints import choose_best, read_state  # noqa: E402
from lsdflow_training.curves import Curves  # noqa: E402
from lsdflow_training.snapshots import snapshot_path  # noqa: E402
from lsdflow_training.trainer import FrozenLsd, Trainer, train  # noqa: E402


def run(prepared, folder, lsd=None, **schedules):
    settings = prepared.settings
    settings = dataclasses.replace(settings, schedules=dataclasses.replace(settings.schedules, **schedules))
    return train(settings, prepared.sources, folder, prepared.key, lsd)


def weights(folder, iteration):
    return load_bundle(bundle_folder(folder / "checkpoints", iteration))[1]


def printed_losses(folder) -> dict[str, str]:
    """Iteration -> loss as written in loss.csv."""
    rows = [row.split(",") for row in (folder / "loss.csv").read_text().splitlines()[1:]]
    return {row[0]: row[1] for row in rows if row[1]}


@pytest.mark.proves("TLS-17")
def test_resumed_training_is_bit_identical_to_uninterrupted(prepared, tmp_path) -> None:
    training = prepared("mtlsd", schedule="constant", elastic_probability=0.5)
    run(training, tmp_path / "whole", max_iteration=4)
    for maximum in (1, 3, 4):
        result = run(training, tmp_path / "parts", max_iteration=maximum)
        assert result.iteration == maximum
    assert tensors_equal(weights(tmp_path / "whole", 4), weights(tmp_path / "parts", 4))
    whole, parts = printed_losses(tmp_path / "whole"), printed_losses(tmp_path / "parts")
    assert list(whole) == ["1", "2", "3", "4"]
    assert parts == whole


@pytest.mark.proves("TLS-15", "TLS-17")
def test_max_iteration_is_a_total_and_a_finished_training_is_left_alone(prepared, tmp_path) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=2)
    before = weights(tmp_path / "t", 2)
    assert run(training, tmp_path / "t", max_iteration=2).iteration == 2
    assert tensors_equal(before, weights(tmp_path / "t", 2))


def test_training_learns(prepared, tmp_path) -> None:
    """Weights move and the loss goes down on a volume this easy."""
    training = prepared("affinities", elastic_probability=0.0, num_fmaps=6)
    run(training, tmp_path / "t", max_iteration=60, learning_rate=3e-3, schedule="constant")
    rows = np.genfromtxt(tmp_path / "t" / "loss.csv", delimiter=",", names=True)
    assert list(rows["iteration"][~np.isnan(rows["loss"])]) == list(range(1, 61))
    loss = rows["loss"][~np.isnan(rows["loss"])]
    assert loss[-10:].mean() < 0.9 * loss[:5].mean()


def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(prepared, tmp_path, caplog) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=4)
    newest = bundle_folder(tmp_path / "t" / "checkpoints", 4) / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert run(training, tmp_path / "t", max_iteration=5).iteration == 5
    assert "cannot be used" in caplog.text
    load_bundle(bundle_folder(tmp_path / "t" / "checkpoints", 5))


def test_all_checkpoints_damaged_is_an_error_not_a_new_start(prepared, tmp_path) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=2)
    for folder in (tmp_path / "t" / "checkpoints").iterdir():
        (folder / "resume.pt").write_bytes(b"rubbish")
    with pytest.raises(BadData, match="all checkpoints"):
        run(training, tmp_path / "t", max_iteration=3)


def test_a_flipped_bit_in_the_optimizer_state_is_damage(prepared, tmp_path) -> None:
    """torch.load reads it without an error."""
    run(prepared("affinities"), tmp_path / "t", max_iteration=2)
    resume = bundle_folder(tmp_path / "t" / "checkpoints", 2) / "resume.pt"
    moment = torch.load(resume, weights_only=True)["optimizer"]["state"][0]["exp_avg"].numpy().tobytes()
    content = bytearray(resume.read_bytes())
    content[content.index(moment)] ^= 1
    resume.write_bytes(content)
    torch.load(resume, weights_only=True)
    with pytest.raises(BadData, match="missing or damaged"):
        read_state(resume)


def test_a_checkpoint_with_damaged_weights_is_not_chosen_as_the_best(prepared, tmp_path, caplog) -> None:
    training = prepared("affinities", validation_fraction=0.3)
    run(training, tmp_path / "t", max_iteration=4)
    best = read_best(tmp_path / "t" / "best.json")
    (damaged,) = (bundle_folder(tmp_path / "t" / "checkpoints", i) for i in (2, 4) if i == best.iteration)
    path = damaged / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert choose_best(tmp_path / "t", training.key).iteration != best.iteration
    assert str(path) in caplog.text


@pytest.mark.parametrize("older", [True, False])
def test_a_flipped_validation_loss_does_not_change_which_checkpoint_is_the_best(
    prepared, tmp_path, caplog, older: bool
) -> None:
    training = prepared("affinities", validation_fraction=0.3)
    run(training, tmp_path / "t", max_iteration=6)
    best = read_best(tmp_path / "t" / "best.json").iteration
    iterations = bundle_iterations(tmp_path / "t" / "checkpoints")
    worse = next(i for i in (iterations if older else reversed(iterations)) if i != best)
    path = bundle_folder(tmp_path / "t" / "checkpoints", worse) / "bundle.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "validation_loss": 1e-9}, indent=2))
    assert choose_best(tmp_path / "t", training.key).iteration == best
    assert str(path) in caplog.text
    with pytest.raises(BadData, match="damaged or was changed"):
        load_bundle(path.parent)


def test_what_a_killed_run_left_half_written_is_swept(prepared, tmp_path) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=2)
    halves = [".best.json.1.partial", ".loss.csv.1.partial", "snapshots/.batch_2.hdf.1.partial"]
    for name in halves:
        (tmp_path / "t" / name).write_bytes(b"")
    run(training, tmp_path / "t", max_iteration=2)
    assert not [name for name in halves if (tmp_path / "t" / name).exists()]


def test_a_checkpoint_that_exists_is_not_written_again(prepared, tmp_path) -> None:
    """Its replacement would be a moment without it."""
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=2)
    made = bundle_folder(tmp_path / "t" / "checkpoints", 2).stat().st_ino
    whole = Trainer(training.settings, training.sources, tmp_path / "t", training.key, None)
    whole._resume()
    with Curves(tmp_path / "t", 2) as curves:
        whole._checkpoint(curves)
    assert bundle_folder(tmp_path / "t" / "checkpoints", 2).stat().st_ino == made


def test_other_parameters_are_refused(prepared, tmp_path) -> None:
    run(prepared("affinities"), tmp_path / "t", max_iteration=2)
    with pytest.raises(OutputConflict):
        run(prepared("affinities", learning_rate=0.5), tmp_path / "t", max_iteration=3)


@pytest.mark.proves("TLS-16")
def test_old_checkpoints_are_removed_but_not_the_best(prepared, tmp_path) -> None:
    training = prepared("affinities", validation_fraction=0.3)
    run(training, tmp_path / "t", max_iteration=5, checkpoint_every=1, keep_checkpoints=2)
    left = bundle_iterations(tmp_path / "t" / "checkpoints")
    best = read_best(tmp_path / "t" / "best.json")
    assert set(left) == {4, 5, best.iteration}
    assert best.validation_loss is not None
    losses = {i: read_bundle(bundle_folder(tmp_path / "t" / "checkpoints", i)).validation_loss for i in left}
    assert min(losses, key=lambda i: losses[i]) == best.iteration


@pytest.mark.proves("TAC-01", "TAC-02", "TAC-05")
def test_acrlsd_trains_behind_a_frozen_network_with_quantised_lsds(prepared, tmp_path) -> None:
    run(prepared("lsd"), tmp_path / "lsd", max_iteration=2)
    lsd_folder = bundle_folder(tmp_path / "lsd" / "checkpoints", 2)
    lsd_bundle, lsd_network = load_network(lsd_folder, "lsd")
    before = {name: value.clone() for name, value in lsd_network.state_dict().items()}
    training = prepared("acrlsd", lsd=lsd_bundle)
    run(training, tmp_path / "affs", FrozenLsd(lsd_bundle, lsd_network), max_iteration=2)
    assert tensors_equal(before, lsd_network.state_dict())
    folder = bundle_folder(tmp_path / "affs" / "checkpoints", 2)
    assert read_bundle(folder).lsd_bundle_sha256 == lsd_bundle.weights_sha256
    with h5py.File(snapshot_path(tmp_path / "affs" / "snapshots", 1)) as file:
        raw, stored = file["volumes/raw"][:], file["volumes/labels/pretrained_lsd"][:]
        assert stored.dtype == np.uint8
        predicted = load_predictor(folder, precision="float32", lsd_folder=lsd_folder).predict(raw)
        # predict has its own form of the network on CPUs: a value between two grey levels may round to the other.
        difference = np.abs(predicted["lsds_u8"].astype(np.int16) - stored)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-4


@pytest.mark.proves("TAC-01")
def test_the_lsd_network_gets_no_gradient(prepared, tmp_path) -> None:
    run(prepared("lsd"), tmp_path / "lsd", max_iteration=2)
    bundle, network = load_network(bundle_folder(tmp_path / "lsd" / "checkpoints", 2))
    training = prepared("acrlsd", lsd=bundle)
    made = Trainer(training.settings, training.sources, tmp_path / "a", training.key, FrozenLsd(bundle, network))
    assert isinstance(made.network, AcrLsd)
    trained = {id(p) for group in made.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in made.network.lsd_network.parameters()}
    assert not any(p.requires_grad for p in made.network.lsd_network.parameters())


def test_a_signal_leaves_a_checkpoint_and_is_resumable(prepared, tmp_path, monkeypatch) -> None:
    training = prepared("affinities")
    step = trainer_module.train_step

    def stopping(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(trainer_module, "train_step", stopping)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM at iteration 1"):
        run(training, tmp_path / "t", max_iteration=9)
    assert signal.getsignal(signal.SIGTERM) == before
    monkeypatch.undo()
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [1]
    assert run(training, tmp_path / "t", max_iteration=2).iteration == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_drops_before_the_first_step_ends_the_training_too(
    prepared, tmp_path, monkeypatch
) -> None:
    class Dropping:
        def __del__(self) -> None:  # what a handler raises in here, Python drops
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer_module, "compile_everything", lambda: Dropping() and None)
    with pytest.raises(Interrupted, match="SIGTERM"), interrupt_on_signals():
        run(prepared("affinities"), tmp_path / "t", max_iteration=2)
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == []
    monkeypatch.undo()
    assert run(prepared("affinities"), tmp_path / "t", max_iteration=2).iteration == 2


def test_worker_processes_end_with_the_training(prepared, tmp_path) -> None:
    """Workers are forked while signals are only remembered; the pool ends them with SIGTERM."""
    run(prepared("affinities", num_workers=1, elastic_probability=0.0), tmp_path / "t", max_iteration=2)
    assert bundle_iterations(tmp_path / "t" / "checkpoints") == [2]


@pytest.mark.proves("TLS-22")
def test_a_time_budget_ends_the_training_in_order(prepared, tmp_path) -> None:
    result = run(prepared("affinities"), tmp_path / "t", max_iteration=1000, max_minutes=1e-6)
    assert result.iteration == 1
    assert result.best.iteration == 1


def test_a_resumed_training_continues_the_schedule_of_its_time_budget(prepared, tmp_path, monkeypatch) -> None:
    """Every step takes 6 s of a clock of the test; the hour between two runs does not count."""
    training, now, rates, stop_at = prepared("affinities", schedule="one_cycle"), [0.0], [], []
    step = trainer_module.train_step

    def slow_step(network, optimizer, *args, **kwargs):
        rates.append(optimizer.param_groups[0]["lr"])
        now[0] += 6.0
        if len(rates) in stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(network, optimizer, *args, **kwargs)

    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(trainer_module, "train_step", slow_step)
    budget = {"max_iteration": 1000, "max_minutes": 1.0}
    assert run(training, tmp_path / "whole", **budget).iteration == 10
    whole = rates.copy()
    assert whole[-1] < 0.05 * max(whole)

    rates.clear()
    stop_at.append(4)
    with pytest.raises(Interrupted, match="SIGTERM at iteration 4"):
        run(training, tmp_path / "parts", **budget)
    stop_at.clear()
    now[0] += 3600.0
    assert run(training, tmp_path / "parts", **budget).iteration == 10
    assert rates == pytest.approx(whole, rel=1e-9)


def test_the_curve_of_a_cut_run_has_no_rows_twice(prepared, tmp_path) -> None:
    training = prepared("affinities")
    run(training, tmp_path / "t", max_iteration=3, checkpoint_every=2)
    path = tmp_path / "t" / "loss.csv"
    path.write_text(path.read_text() + "4,0.5,1,1,\n5,0.5")
    run(training, tmp_path / "t", max_iteration=5)
    iterations = [row.split(",")[0] for row in path.read_text().splitlines()[1:] if row.split(",")[1]]
    assert iterations == ["1", "2", "3", "4", "5"]
    assert any((tmp_path / "t" / "log").iterdir())
