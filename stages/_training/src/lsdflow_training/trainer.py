"""The training loop: resume, step, log, validate, checkpoint, snapshot, stop.

1. build network and optimizer from the seed; resume from the newest valid checkpoint if there is one
2. get the next batches, do a step; a loss that is not finite ends the training with an error that names the iteration
3. at intervals: validate, write a bundle (complete or not at all), choose the best, delete old ones
4. stop at max_iteration (in total over all runs) or max_minutes, on early stopping (if enabled), or on a signal (then
   exit 75)

With several processes the step that makes iteration i uses batches (i - 1) n + 1 ... i n, n = the patches of a step in
all processes; with k processes, each uses every k-th of them.  All agree on the losses, the time and when to stop; the
first writes.

Another framework replaces the step and what depends on it, see lsdflow_tensorflow.trainer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import gunpowder as gp
import torch

from lsdflow_command.interruption import end_if_asked
from lsdflow_command.progress import Progress
from lsdflow_contract.checkpoint import BestCheckpoint
from lsdflow_contract.errors import BadData, Interrupted
from lsdflow_training import checkpoints as ckpt
from lsdflow_training.build import FrozenLsd, build_network, device_of, make_optimizer, new_network, training_precision
from lsdflow_training.checkpoints import Resumed, TrainingState
from lsdflow_training.compiled import compile_everything
from lsdflow_training.curves import Curves, count_iteration, report_validation, training_progress
from lsdflow_training.data.patch import Patch, to_patch
from lsdflow_training.data.pipeline import Keys, make_keys
from lsdflow_training.data.streams import make_stream, next_batches
from lsdflow_training.data.volumes import Source
from lsdflow_training.failures import TOO_LARGE, StopRequest, memory_errors, not_finite, stop_on_signals
from lsdflow_training.mlflow_log import MlflowLog
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.sharding import all_finite, require_same_weights, whole_optimizer, whole_weights
from lsdflow_training.run import TrainingResult
from lsdflow_training.schedule import learning_rate, limit_reached
from lsdflow_training.settings import TrainingSettings, make_bundle
from lsdflow_training.snapshots import pictures, snapshot_path, write_snapshot
from lsdflow_training.step import AveragedWeights, Gradients, StepResult, train_step
from lsdflow_training.timing import DataWait, NodeTimes, step_profile
from lsdflow_training.validation import LossMonitor, read_patches, shared_validation_loss

LOG = logging.getLogger("lsdflow.training")


def train(
    settings: TrainingSettings,
    sources: Sequence[Source],
    folder: Path,
    training_key: str,
    lsd: FrozenLsd | None = None,
    group: Group | None = None,
) -> TrainingResult:
    """Train to settings.schedules.max_iteration, resuming from `folder`. group: the other processes, if there are any.

    Raises Interrupted (75) after a signal, BadData if the loss or the weights are not finite, ConfigError if the
    training does not fit in memory, OutputConflict if the folder holds another training.
    """
    with memory_errors(settings):
        return Trainer(settings, sources, folder, training_key, lsd, group or Group()).run()


class Trainer:
    """One training run; its state is what a checkpoint holds."""

    def __init__(
        self,
        settings: TrainingSettings,
        sources: Sequence[Source],
        folder: Path,
        training_key: str,
        lsd: FrozenLsd | None,
        group: Group | None = None,
    ) -> None:
        self.group = group or Group()
        torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        self.settings, self.sources, self.lsd = settings, sources, lsd
        self.folder, self.training_key = folder, training_key
        self.checkpoints = folder / "checkpoints"
        self.keys: Keys = make_keys()
        self.trained = new_network(settings, empty=settings.distribution.sharded and not self.group.alone)
        self.gradients = Gradients()
        self.average: AveragedWeights | None = None
        self.patches_per_step = settings.step.patches  # of this process
        self._build()
        self.monitor = LossMonitor(folder, settings.patience, self.group)
        self.iteration = 0
        self.saved = 0
        self.minutes_before = 0.0
        self.started = time.monotonic()
        self.stop = StopRequest()
        # What the processes exchange in each step: whether one has received a signal, and the minutes of the first.
        self.stopping, self.minutes_of_rank_0 = False, 0.0
        self.times, self.data_wait = NodeTimes(), DataWait(warn=self.group.writes)
        self.patches: list[Patch] = []
        self.validated: dict[int, float | None] = {}
        # Writes the snapshot of the last step, in the process that writes.
        self.show: Callable[[], None] | None = None

    def _build(self) -> None:
        """Put the network on its device, shared among the processes, and make its optimizer."""
        settings, group = self.settings, self.group
        self.device = device_of(settings.device, group)
        self.precision = training_precision(settings, group, self.device)
        self.network, gradients = build_network(settings, self.trained, self.lsd, group, self.device, self.precision)
        self.gradients = gradients if group.alone else replace(gradients, combine=self._combine)
        self.optimizer = make_optimizer(settings, self.trained)
        if settings.average_decay is not None:
            self.average = AveragedWeights(self.trained, settings.average_decay)

    def run(self) -> TrainingResult:
        """See module docstring."""
        self._resume()
        self.monitor.judge(self.iteration)
        begun_at = self.iteration
        if not self._finished():
            end_if_asked()
            LOG.info(
                "loading the compiled loops; the first training on a machine compiles them, which takes about a minute"
            )
            compile_everything()
            self.patches = self._validation_patches()
            self.monitor.begin(self.patches)
            self._log_step_options()
            self.started = time.monotonic()
            with stop_on_signals() as self.stop, self._curves() as curves:
                self._loop(curves)
                # An interruption adds no validation: early stopping and the best must not depend on it.
                self._checkpoint(curves, validate=self._finished())
                self.group.wait_for_all()  # the first one writes: no other may end before
            LOG.info("data pipeline, per batch:\n%s", self.times.table())
            if self._stops() and not self._finished():
                signal = self.stop.name or "a signal to another process"
                raise Interrupted(
                    f"training stopped by {signal} at iteration {self.iteration}",
                    where=self.checkpoints,
                    fix="run the same command again to resume",
                )
        seconds = max(time.monotonic() - self.started, 1e-9)
        best = self._choose() if self.group.writes else None
        rate = (self.iteration - begun_at) / seconds
        samples = rate * self.settings.step.effective_batch
        LOG.info("%.3g it/s, %.3g samples/s with %d processes", rate, samples, self.group.ranks.world_size)
        return TrainingResult(self.iteration, best, self._minutes(), rate, self._ended_by() or "", self.data_wait.share)

    def _loop(self, curves: Curves | None) -> None:
        schedules, ranks, own = self.settings.schedules, self.group.ranks, self.patches_per_step
        first = self.iteration * own * ranks.world_size + ranks.rank + 1
        stream = make_stream(self.keys, self.settings, self.sources, first, ranks.world_size, self.times)
        profile = step_profile(self.settings.records.profile_steps, self.folder, self.settings.device, ranks.rank)
        bar = training_progress(self.settings, self.iteration, self.minutes_before, self.group.writes)
        with stream as batches, bar as progress, profile as profiled:
            while not self._finished() and not self._stops():
                with self.data_wait:
                    of_step = next_batches(batches, own, self._stops())
                if not of_step:
                    break
                result = self._step(of_step, curves)
                if curves is not None and progress is not None:
                    self._log(curves, result, progress)
                if self.iteration % schedules.validation_every == 0 and self.iteration % schedules.checkpoint_every:
                    self._validate(curves)
                if self.iteration % schedules.checkpoint_every == 0 and not self._finished():
                    self._checkpoint(curves)
                profiled(self.iteration)
        # Only after a step is it known that time or the validation loss has ended the training.
        if self.show is not None and self._finished() and not schedules.has_snapshot(self.iteration):
            self.show()

    def _step(self, batches: Sequence[gp.Batch], curves: Curves | None) -> StepResult:
        schedules = self.settings.schedules
        number = self.iteration + 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(schedules, number, self._minutes())
        patches = [to_patch(batch, self.keys, self.device) for batch in batches]
        snapshot = self.group.writes and schedules.has_snapshot(number)
        result = self._train_step(patches, keep_gradients=snapshot)
        if not torch.isfinite(result.loss):
            raise self._loss_not_finite(float(result.loss.detach()))
        self.iteration = number
        if self.average is not None:
            self.average.update(number)
        if curves is not None:
            self.show = partial(self._snapshot, curves, patches[-1], result)
            if snapshot:
                self.show()
        return result

    def _train_step(self, patches: Sequence[Patch], keep_gradients: bool) -> StepResult:
        """One step of all processes, with the learning rate of the optimizer."""
        return train_step(
            self.network,
            self.optimizer,
            patches,
            self.precision,
            keep_gradients=keep_gradients,
            gradients=self.gradients,
        )

    def _snapshot(self, curves: Curves, patch: Patch, result: StepResult) -> None:
        curves.add_pictures(self.iteration, pictures(patch, result))
        path = snapshot_path(self.folder / "snapshots", self.iteration)
        size = self.settings.targets.voxel_size_nm
        write_snapshot(path, self.settings.kind, patch, result=result, voxel_size_nm=size)

    def _combine(self, mine: StepResult) -> StepResult:
        """The result of this process -> that of all. Raises BadData in all of them if the loss of one is not finite."""
        rows = self.group.gather([float(bool(self.stop)), self._own_minutes(), *mine.losses.values()])
        for rank, (_, _, *losses) in enumerate(rows):
            if not all(map(math.isfinite, losses)):
                raise self._loss_not_finite(sum(losses), rank)
        self.stopping, self.minutes_of_rank_0 = any(row[0] for row in rows), rows[0][1]
        means = [sum(row[i] for row in rows) / len(rows) for i in range(2, len(rows[0]))]
        return replace(mine, losses=dict(zip(mine.losses, means, strict=True)))

    def _stops(self) -> bool:
        """Whether to stop: a single process stops at once, several stop when all have agreed."""
        return bool(self.stop) if self.group.alone else self.stopping

    def _loss_not_finite(self, loss: float, rank: int | None = None) -> BadData:
        """The error of the next step, with its batches; those of one process if its rank is known."""
        number = self.iteration + 1
        batches = self._batches(number)
        if rank is not None:
            batches = batches[rank :: self.group.ranks.world_size]
        return not_finite("loss is", f"loss {loss}", number=number, saved=self.saved, batches=batches, process=rank)

    def _batches(self, number: int) -> range:
        """The batches of all processes for the step that makes iteration `number`."""
        count = self.settings.step.effective_batch
        return range((number - 1) * count + 1, number * count + 1)

    def _log(self, curves: Curves, result: StepResult, progress: Progress) -> None:
        schedules, rate = self.settings.schedules, self.optimizer.param_groups[0]["lr"]
        count_iteration(progress, result.losses, rate)
        if self.iteration % max(1, schedules.max_iteration // 20_000) == 0:
            curves.add(self.iteration, result.losses, progress.rate(), rate)
        if self.iteration % schedules.profile_every == 0:
            LOG.info("data pipeline, per batch:\n%s", self.times.table())
            self.data_wait.log(curves, self.iteration)
            LOG.info("%.3g samples/s", progress.rate() * self.settings.step.effective_batch)

    def _validate(self, curves: Curves | None) -> float | None:
        if self.iteration in self.validated:
            return self.validated[self.iteration]
        with self._saved_weights():
            value = self._validation_loss()
        self.validated = {self.iteration: value}
        if value is None:
            return None
        if curves is not None:
            curves.add_validation(self.iteration, value)
            report_validation(value)
            LOG.info("iteration %d: validation loss %.5g", self.iteration, value)
        self.monitor.check(self.iteration, value)
        return value

    def _validation_patches(self) -> list[Patch]:
        """The share of this process."""
        ranks = self.group.ranks
        return read_patches(self.keys, self.settings, self.sources, ranks.rank, ranks.world_size)

    def _validation_loss(self) -> float | None:
        """The loss over the validation patches of all processes; None if there are none."""
        raw_vox, device = self.settings.shapes.raw_vox, self.device
        return shared_validation_loss(
            self.network, self.patches, self.group, raw_vox, device=device, precision=self.precision
        )

    def _saved_weights(self) -> AbstractContextManager[None]:
        """In the context, the network has the weights that are written to the bundle."""
        return nullcontext() if self.average is None else self.average.in_use()

    def _checkpoint(self, curves: Curves | None, *, validate: bool = True) -> None:
        if self.iteration == self.saved:
            return
        require_same_weights(self.trained, self.group, self.settings.distribution)
        if not all(row[0] for row in self.group.gather([float(all_finite(self.trained))])):
            batches = self._batches(self.iteration)
            raise not_finite("weights are", TOO_LARGE, number=self.iteration, saved=self.saved, batches=batches)
        value = self._validate(curves) if validate else self.validated.get(self.iteration)
        keep = curves is not None
        with self._saved_weights():
            weights = whole_weights(self.trained, keep)
        own = {} if self.average is None else whole_weights(self.trained, keep)
        optimizer = whole_optimizer(self.optimizer, keep)
        self.saved = self.iteration
        if curves is not None:
            curves.flush()
            bundle = make_bundle(self.settings, self.iteration, self.training_key, value, self._lsd_sha256())
            scaler = {} if self.gradients.scaler is None else self.gradients.scaler.state_dict()
            state = TrainingState(optimizer, torch.get_rng_state(), self._minutes(), scaler=scaler, weights=own)
            ckpt.save_checkpoint(self.checkpoints, bundle, weights, state)
            self._choose()

    def _choose(self) -> BestCheckpoint:
        schedules = self.settings.schedules
        return ckpt.keep_best(self.folder, self.training_key, schedules.keep_checkpoints, schedules.keep_best)

    def _checkpoint_to_resume(self) -> Resumed | None:
        """The checkpoint that the first process finds, for all."""
        resumed = ckpt.newest_valid(self.checkpoints, self.training_key) if self.group.writes else None
        found = int(self.group.of_rank_0(-1 if resumed is None else resumed.bundle.iteration))
        if resumed is None and found >= 0:
            resumed = ckpt.read_checkpoint(self.checkpoints, found)
        sha256 = "none" if resumed is None else resumed.bundle.weights_sha256
        self.group.require_same(sha256.encode(), f"checkpoint of iteration {found}")
        return resumed

    def _resume(self) -> None:
        resumed = self._checkpoint_to_resume()
        if self.group.writes:
            ckpt.remove_partial(self.folder)
        if resumed is not None:
            ckpt.restore(resumed, self.trained, self.optimizer, self.average)
            if self.gradients.scaler is not None and resumed.state.scaler:
                self.gradients.scaler.load_state_dict(resumed.state.scaler)
            self.iteration = self.saved = resumed.bundle.iteration
            self.minutes_before = resumed.state.minutes
            LOG.info("resuming from iteration %d", self.iteration)
        self.minutes_of_rank_0 = self.group.of_rank_0(self.minutes_before)

    def _curves(self) -> Curves | nullcontext[None]:
        if not self.group.writes:
            return nullcontext()
        mlflow = None
        if self.settings.records.mlflow is not None:
            mlflow = MlflowLog(self.settings, self.folder, self.training_key, self._ended_by)
        return Curves(self.folder, self.iteration, mlflow)

    def _log_step_options(self) -> None:
        step, world = self.settings.step, self.group.ranks.world_size
        if step.effective_batch > 1:
            LOG.info(
                "%d patches a step (%d processes x %d), %s",
                *(step.effective_batch, world, self.patches_per_step, self.settings.distribution.strategy),
            )

    def _lsd_sha256(self) -> str | None:
        return None if self.lsd is None else self.lsd.bundle.weights_sha256

    def _minutes(self) -> float:
        """Minutes of the first process, on which all agree: the learning rate and the end may depend on them."""
        return self._own_minutes() if self.group.alone else self.minutes_of_rank_0

    def _own_minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started) / 60

    def _finished(self) -> bool:
        return self._ended_by() is not None

    def _ended_by(self) -> str | None:
        """The reason for the end: the verdict on the validation loss, or the limit that is reached; else None."""
        if self.monitor.verdict != "continue":
            return self.monitor.verdict
        return limit_reached(self.settings.schedules, self.iteration, self._minutes())
