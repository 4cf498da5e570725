"""The training loop with TensorFlow; batches, schedules, checkpoints, curves and stops as in lsdflow_training.trainer.

1. the weights come from the newest valid checkpoint (of either backend), else torch makes them from the seed
2. first the processes that make patches start, then TensorFlow: see engine.start_tensorflow
3. in a cluster the step that makes iteration i uses batches (i - 1) n + 1 ... i n, with n the number of all replicas;
   each process uses every k-th of them, with k processes. All agree on losses, time and the end; the chief writes
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gunpowder as gp
import torch

from lsdflow_contract.checkpoint import BestCheckpoint
from lsdflow_contract.errors import Interrupted
from lsdflow_tensorflow.cluster import Cluster, find_cluster, require_possible, shared_among
from lsdflow_training import checkpoints as ckpt
from lsdflow_training.build import FrozenLsd, new_network
from lsdflow_training.checkpoints import TrainingState
from lsdflow_training.compiled import compile_everything
from lsdflow_training.curves import Curves, count_iteration, report_validation, training_progress
from lsdflow_training.data.patch import Patch, to_patch
from lsdflow_training.data.pipeline import Source, make_keys
from lsdflow_training.data.streams import BatchNumbers, make_stream
from lsdflow_training.failures import TOO_LARGE, StopRequest, batches_of, not_finite, stop_on_signals
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.sharding import all_finite
from lsdflow_training.run import Training, TrainingResult
from lsdflow_training.schedule import learning_rate, limit_reached
from lsdflow_training.settings import TrainingSettings, make_bundle
from lsdflow_training.snapshots import pictures, snapshot_path, write_snapshot
from lsdflow_training.timing import NodeTimes
from lsdflow_training.validation import LossMonitor, read_patches

if TYPE_CHECKING:
    from lsdflow_tensorflow.engine import Engine, Step


LOG = logging.getLogger("lsdflow.training")


def train(
    settings: TrainingSettings, sources: Sequence[Source], folder: Path, training_key: str, lsd: FrozenLsd | None = None
) -> TrainingResult:
    """Train to settings.schedules.max_iteration in the processes of TF_CONFIG or SLURM; resume from `folder`.

    Raises what lsdflow_training.trainer.train raises, and ConfigError for options that TensorFlow does not support.
    """
    cluster = find_cluster(os.environ)
    require_possible(settings, cluster)
    return TensorflowTrainer(settings, sources, folder, training_key, lsd, cluster).run()


class TensorflowTrainer:
    """One training run. The engine holds its state, which is copied to torch's network and optimizer at checkpoints."""

    def __init__(
        self,
        settings: TrainingSettings,
        sources: Sequence[Source],
        folder: Path,
        training_key: str,
        lsd: FrozenLsd | None,
        cluster: Cluster,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.sources, self.lsd = settings, sources, lsd
        self.folder, self.training_key = folder, training_key
        self.cluster, self.replicas = cluster, settings.distribution.processes
        self.checkpoints = folder / "checkpoints"
        self.keys = make_keys()
        self.trained = new_network(settings)
        schedules = settings.schedules
        self.optimizer = torch.optim.Adam(self.trained.parameters(), lr=schedules.learning_rate, betas=schedules.betas)
        self.monitor = LossMonitor(folder, settings.early_stopping, Group())  # the chief alone validates
        self.iteration = self.saved = 0
        self.minutes_before = self.minutes = 0.0
        self.started = time.monotonic()
        self.times = NodeTimes()
        self.patches: list[Patch] = []
        self.validated: dict[int, float] = {}

    def run(self) -> TrainingResult:
        """See module docstring."""
        self._resume()
        begun_at = self.iteration
        if not self._finished():
            compile_everything()
            self.patches = read_patches(self.keys, self.settings, self.sources) if self.cluster.is_chief else []
            self.monitor.begin(self.patches)
            self.started = time.monotonic()
            with stop_on_signals() as stop, self._curves() as curves:
                stopped = self._loop(curves, stop)
            LOG.info("data pipeline, per batch:\n%s", self.times.table())
            if stopped and not self._finished():
                raise Interrupted(
                    f"training stopped by {stop.name or 'a signal to another process'} at iteration {self.iteration}",
                    where=self.checkpoints,
                    fix="run the same command again to resume",
                )
        rate = (self.iteration - begun_at) / max(time.monotonic() - self.started, 1e-9)
        best = self._choose() if self.cluster.is_chief else None
        ended_by = limit_reached(self.settings.schedules, self.iteration, self.minutes) or ""
        return TrainingResult(self.iteration, best, self.minutes, rate, ended_by)

    def _loop(self, curves: Curves | None, stop: StopRequest) -> bool:
        """Run steps until the end; return whether a signal ended them."""
        schedules, count = self.settings.schedules, self.settings.step.effective_batch
        numbers = BatchNumbers(self.iteration * count + self.cluster.rank + 1, self.cluster.size)
        stream = make_stream(self.keys, self.settings, self.sources, numbers, self.times)
        bar = training_progress(self.settings, self.iteration, self.minutes_before, self.cluster.is_chief)
        with stream as batches, bar as progress:
            batches_of_step = self._next_batches(batches)
            engine = self._start()
            while True:
                step = self._step(engine, batches_of_step, stop, curves)
                if curves is not None and progress is not None:
                    count_iteration(progress, step.losses, step.learning_rate)
                    self._log(engine, curves, step, progress.rate())
                # a single process stops at once, several in the step in which all see the signal
                stopped = step.stop or (self.cluster.size == 1 and bool(stop))
                if stopped or self._finished():
                    break
                if curves is not None and self.iteration % schedules.checkpoint_every == 0:
                    self._checkpoint(engine, curves)
                batches_of_step = self._next_batches(batches)
            if curves is not None and self._finished() and not schedules.has_snapshot(self.iteration):
                self._snapshot(engine, batches_of_step[-1], self.iteration, curves)
            if curves is not None:
                # An interruption adds no validation: the choice of the best must not depend on it.
                self._checkpoint(engine, curves, validate=self._finished())
            engine.wait_for_all()
        return stopped

    def _next_batches(self, batches: Iterator[gp.Batch]) -> list[gp.Batch]:
        return [next(batches) for _ in range(self.replicas)]

    def _start(self) -> Engine:
        """Start TensorFlow, after the processes that make patches were forked."""
        from lsdflow_tensorflow.engine import Engine, local_devices, make_strategy, start_tensorflow

        device = self.settings.device
        start_tensorflow(self.settings.threads, device, self.replicas)
        strategy = make_strategy(self.cluster, local_devices(device, self.replicas))
        LOG.info("%s, %d replicas", type(strategy).__name__, strategy.num_replicas_in_sync)
        return Engine(self.settings, strategy, self.trained, self.optimizer, self.lsd)

    def _step(self, engine: Engine, batches: Sequence[gp.Batch], stop: StopRequest, curves: Curves | None) -> Step:
        schedules, number = self.settings.schedules, self.iteration + 1
        minutes = self._own_minutes()
        rate = learning_rate(schedules, number, minutes)
        patches = [to_patch(batch, self.keys, torch.device("cpu")) for batch in batches]
        if curves is not None and schedules.has_snapshot(number):
            self._snapshot(engine, batches[-1], number, curves)
        step = engine.step(patches, number, rate, minutes=minutes, stop=bool(stop))
        loss = sum(step.losses.values())
        if not math.isfinite(loss):
            raise not_finite("loss is", f"loss {loss}", number=number, saved=self.saved, batches=self._batches(number))
        self.iteration, self.minutes = number, step.minutes
        for group in self.optimizer.param_groups:
            group["lr"] = step.learning_rate
        return step

    def _snapshot(self, engine: Engine, batch: gp.Batch, number: int, curves: Curves) -> None:
        patch = to_patch(batch, self.keys, torch.device("cpu"))
        path, size = snapshot_path(self.folder / "snapshots", number), self.settings.targets.voxel_size_nm
        result = engine.inspect(patch)
        curves.add_pictures(number, pictures(patch, result))
        write_snapshot(path, self.settings.kind, batch, self.keys, result=result, voxel_size_nm=size)

    def _log(self, engine: Engine, curves: Curves, step: Step, rate: float) -> None:
        schedules = self.settings.schedules
        if self.iteration % max(1, schedules.max_iteration // 20_000) == 0:
            curves.add(self.iteration, step.losses, rate, step.learning_rate)
        if self.iteration % schedules.validation_every == 0 and self.iteration % schedules.checkpoint_every:
            self._validate(engine, curves)
        if self.iteration % schedules.profile_every == 0:
            LOG.info("data pipeline, per batch:\n%s", self.times.table())

    def _validate(self, engine: Engine, curves: Curves) -> float | None:
        if not self.patches or self.iteration in self.validated:
            return self.validated.get(self.iteration)
        value = sum(engine.loss(patch) for patch in self.patches) / len(self.patches)
        curves.add_validation(self.iteration, value)
        report_validation(value)
        LOG.info("iteration %d: validation loss %.5g", self.iteration, value)
        self.monitor.check(self.iteration, value)
        self.validated = {self.iteration: value}
        return value

    def _checkpoint(self, engine: Engine, curves: Curves, *, validate: bool = True) -> None:
        if self.iteration == self.saved:
            return
        engine.export(self.trained, self.optimizer)
        if not all_finite(self.trained):
            batches = self._batches(self.iteration)
            raise not_finite("weights are", TOO_LARGE, number=self.iteration, saved=self.saved, batches=batches)
        value = self._validate(engine, curves) if validate else self.validated.get(self.iteration)
        curves.flush()
        sha256 = None if self.lsd is None else self.lsd.bundle.weights_sha256
        bundle = make_bundle(self.settings, self.iteration, self.training_key, value, sha256)
        state = TrainingState(self.optimizer.state_dict(), torch.get_rng_state(), self._own_minutes())
        ckpt.save_checkpoint(self.checkpoints, bundle, self.trained.state_dict(), state)
        self.saved = self.iteration
        self._choose()

    def _batches(self, number: int) -> range:
        return batches_of(number, self.settings.step.effective_batch)

    def _choose(self) -> BestCheckpoint:
        return ckpt.keep_best(self.folder, self.training_key, self.settings.schedules.keep_checkpoints)

    def _resume(self) -> None:
        """All processes find the same checkpoint, because the chief writes one only after a step of all."""
        resumed = ckpt.newest_valid(self.checkpoints, self.training_key)
        if self.cluster.is_chief:
            ckpt.remove_partial(self.folder)
        if resumed is not None:
            ckpt.restore(resumed, self.trained, self.optimizer)
            self.iteration = self.saved = resumed.bundle.iteration
            self.minutes_before = self.minutes = resumed.state.minutes
            LOG.info("resuming from iteration %d", self.iteration)

    def _curves(self) -> Curves | nullcontext[None]:
        return Curves(self.folder, self.iteration) if self.cluster.is_chief else nullcontext()

    def _own_minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started) / 60

    def _finished(self) -> bool:
        return limit_reached(self.settings.schedules, self.iteration, self.minutes) is not None


def share_among_cluster(training: Training) -> tuple[Training, bool]:
    """The training as shared by the processes of TF_CONFIG or SLURM, and whether this process writes the results.

    Raises ConfigError (78) for options that are not available with TensorFlow.
    """
    cluster = find_cluster(os.environ)
    settings = shared_among(training.settings, cluster)
    require_possible(settings, cluster)
    return replace(training, settings=settings), cluster.is_chief


def train_alone(
    settings: TrainingSettings, sources: Sequence[Source], folder: Path, training_key: str, lsd: FrozenLsd | None = None
) -> TrainingResult:
    """Train in this process alone and ignore TF_CONFIG and SLURM. Used to measure a few steps."""
    alone = Cluster()
    shared = shared_among(settings, alone)
    require_possible(shared, alone)
    return TensorflowTrainer(shared, sources, folder, training_key, lsd, alone).run()
