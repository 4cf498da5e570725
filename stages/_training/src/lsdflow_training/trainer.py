"""The training loop: resume, step, log, validate, checkpoint, snapshot, stop.

1. build network and optimizer from the seed; go on from the newest valid checkpoint if there is one
2. take batch number iteration + 1, step; a loss that is not finite ends the training, naming the iteration
3. every so often: validate, write a bundle (whole or absent), choose the best, delete old ones
4. stop at max_iteration (a total over all runs) or max_minutes, or when a signal asks for it (then exit 75)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gunpowder as gp
import torch
from torch import nn

from lsdflow_command.progress import Progress
from lsdflow_contract.checkpoint import BestCheckpoint, Bundle
from lsdflow_contract.errors import BadData, InternalError, Interrupted
from lsdflow_network.composition import AcrLsd
from lsdflow_network.precision import Precision, choose_precision, memory_format
from lsdflow_network.unet import UNet
from lsdflow_training import checkpoints as ckpt
from lsdflow_training.batches import batch_stream
from lsdflow_training.best import choose_best
from lsdflow_training.bundle_facts import make_bundle
from lsdflow_training.curves import Curves
from lsdflow_training.interruption import StopRequest, stop_on_signals
from lsdflow_training.network_step import Patch, StepResult, to_patch, train_step
from lsdflow_training.pipeline import Keys, Source, batch_request, make_keys, training_pipeline
from lsdflow_training.profiling import NodeTimes
from lsdflow_training.recipe import Recipe
from lsdflow_training.schedule import learning_rate
from lsdflow_training.snapshots import snapshot_path, write_snapshot
from lsdflow_training.training_state import TrainingState
from lsdflow_training.validation import read_patches, validation_loss
from lsdflow_training.warm_up import compile_everything

LOG = logging.getLogger("lsdflow.training")


@dataclass(frozen=True)
class FrozenLsd:
    """The LSD network of an AcrLSD training."""

    bundle: Bundle
    network: nn.Module


@dataclass(frozen=True)
class Outcome:
    """What a training left: its last iteration, the bundle to use, minutes trained, how fast the last run was."""

    iteration: int
    best: BestCheckpoint
    minutes: float
    it_per_s: float


def train(
    recipe: Recipe, sources: Sequence[Source], folder: Path, training_key: str, lsd: FrozenLsd | None = None
) -> Outcome:
    """Train to recipe.schedules.max_iteration, resuming what is in `folder`.

    Raises Interrupted (75) after a signal, BadData if the loss is not finite, NotOurs if the folder holds another
    training.
    """
    return Trainer(recipe, sources, folder, training_key, lsd).run()


class Trainer:
    """One training run; its state is what a checkpoint holds."""

    def __init__(
        self, recipe: Recipe, sources: Sequence[Source], folder: Path, training_key: str, lsd: FrozenLsd | None
    ) -> None:
        torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.recipe, self.sources, self.folder, self.training_key, self.lsd = recipe, sources, folder, training_key, lsd
        self.checkpoints = folder / "checkpoints"
        self.keys: Keys = make_keys()
        self.device = torch.device(recipe.device)
        self.precision: Precision = choose_precision(self.device, recipe.precision)
        self.trained = UNet(recipe.unet, recipe.outputs)
        self.network = self._whole_network()
        self.optimizer = torch.optim.Adam(
            self.trained.parameters(), lr=recipe.schedules.learning_rate, betas=recipe.schedules.betas
        )
        self.iteration = 0
        self.saved = 0
        self.minutes_before = 0.0
        self.started = time.monotonic()
        self.times = NodeTimes()
        self.patches: list[Patch] = []

    def run(self) -> Outcome:
        """See module docstring."""
        self._resume()
        begun_at = self.iteration
        if not self._finished():
            compile_everything()
            self.patches = read_patches(self.keys, self.recipe, self.sources)
            self.started = time.monotonic()
            with stop_on_signals() as stop, Curves(self.folder, self.iteration) as curves:
                self._loop(curves, stop)
                self._checkpoint(curves)
            LOG.info("data pipeline, per batch:\n%s", self.times.table())
            if stop and not self._finished():
                raise Interrupted(
                    f"training stopped by {stop.name} at iteration {self.iteration}",
                    where=self.checkpoints,
                    hint="run the same command again to go on",
                )
        seconds = max(time.monotonic() - self.started, 1e-9)
        return Outcome(self.iteration, self._choose(), self._minutes(), (self.iteration - begun_at) / seconds)

    def _loop(self, curves: Curves, stop: StopRequest) -> None:
        how = self.recipe.schedules
        stream = batch_stream(
            training_pipeline(self.keys, self.recipe, self.sources),
            batch_request(self.keys, self.recipe),
            seed=self.recipe.seed,
            first=self.iteration + 1,
            num_workers=self.recipe.num_workers,
            cache_size=self.recipe.cache_size,
            times=self.times,
        )
        with stream as batches, Progress(self.recipe.stage, how.max_iteration, "iteration", self.iteration) as progress:
            while not self._finished() and not stop:
                batch = _next_batch(batches, stop)
                if batch is None:
                    break
                result = self._step(batch)
                self._log(curves, result, progress)
                if self.iteration % how.checkpoint_every == 0 and not self._finished():
                    self._checkpoint(curves)

    def _step(self, batch: gp.Batch) -> StepResult:
        how = self.recipe.schedules
        number = self.iteration + 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(how, number, self._minutes())
        patch = to_patch(batch, self.keys, self.device)
        snapshot = number % how.snapshot_every == 0 or number == 1
        result = train_step(self.network, self.optimizer, patch, self.precision, keep_gradients=snapshot)
        if not torch.isfinite(result.loss):
            raise BadData(
                "the loss is not finite",
                where=f"iteration {number}",
                found=f"loss {float(result.loss.detach())}",
                hint="lower learning_rate, or look for NaN in the volumes (prepare validate); "
                f"the last checkpoint is that of iteration {self.iteration - self.iteration % how.checkpoint_every}",
            )
        self.iteration = number
        if snapshot:
            path = snapshot_path(self.folder / "snapshots", number)
            size = self.recipe.targets.voxel_size_nm
            write_snapshot(path, self.recipe.kind, batch, self.keys, result=result, voxel_size_nm=size)
        return result

    def _log(self, curves: Curves, result: StepResult, progress: Progress) -> None:
        progress.advance(1, loss=sum(result.losses.values()))
        how = self.recipe.schedules
        if self.iteration % max(1, how.max_iteration // 20_000) == 0:
            curves.add(self.iteration, result.losses, progress.rate(), self.optimizer.param_groups[0]["lr"])
        if self.iteration % how.validation_every == 0 and self.iteration % how.checkpoint_every:
            self._validate(curves)
        if self.iteration % how.profile_every == 0:
            LOG.info("data pipeline, per batch:\n%s", self.times.table())

    def _validate(self, curves: Curves) -> float | None:
        if not self.patches:
            return None
        value = validation_loss(self.network, self.patches, self.device, self.precision)
        curves.add_validation(self.iteration, value)
        LOG.info("iteration %d: validation loss %.5g", self.iteration, value)
        return value

    def _checkpoint(self, curves: Curves) -> None:
        if self.iteration == self.saved:
            return
        value = self._validate(curves)
        curves.flush()
        bundle = make_bundle(self.recipe, self.iteration, self.training_key, value, self._lsd_sha256())
        state = TrainingState(self.optimizer.state_dict(), torch.get_rng_state(), self._minutes())
        ckpt.save_checkpoint(self.checkpoints, bundle, self.trained, state)
        self.saved = self.iteration
        self._choose()

    def _choose(self) -> BestCheckpoint:
        best = choose_best(self.folder, self.training_key)
        ckpt.remove_old(self.checkpoints, self.recipe.schedules.keep_checkpoints, {best.iteration})
        return best

    def _resume(self) -> None:
        resumed = ckpt.newest_valid(self.checkpoints, self.training_key)
        ckpt.remove_partial(self.folder)
        if resumed is not None:
            ckpt.restore(resumed, self.trained, self.optimizer)
            self.iteration = self.saved = resumed.bundle.iteration
            self.minutes_before = resumed.state.minutes
            LOG.info("going on from iteration %d", self.iteration)

    def _whole_network(self) -> nn.Module:
        network: nn.Module = self.trained
        if self.lsd is not None:
            network = AcrLsd(self.lsd.network, self.lsd.bundle.unet, self.trained, self.recipe.unet)
        network.train()
        return network.to(self.device).to(memory_format=memory_format(self.device))  # type: ignore[call-overload,no-any-return]

    def _lsd_sha256(self) -> str | None:
        return None if self.lsd is None else self.lsd.bundle.weights_sha256

    def _minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started) / 60

    def _finished(self) -> bool:
        how = self.recipe.schedules
        out_of_time = how.max_minutes is not None and self._minutes() >= how.max_minutes and self.iteration > 0
        return self.iteration >= how.max_iteration or out_of_time


def _next_batch(batches: Iterator[gp.Batch], stop: StopRequest) -> gp.Batch | None:
    """The next batch; None if a signal that reached us also ended the workers."""
    try:
        return next(batches)
    except InternalError:
        if stop:
            return None
        raise
