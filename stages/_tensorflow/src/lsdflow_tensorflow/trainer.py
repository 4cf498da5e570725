"""Training with TensorFlow: the loop of lsdflow_training.trainer around the steps of an Engine.

Torch holds the weights and the optimizer's state at the beginning and at checkpoints, of either backend; in between the
engine does. First the processes that make patches start, then TensorFlow, with the first step: see
engine.start_tensorflow. So the processes of a cluster exchange nothing before it, and afterwards only within steps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lsdflow_tensorflow.cluster import Cluster, find_cluster, shared_among
from lsdflow_training import checkpoints as ckpt
from lsdflow_training.build import FrozenLsd, make_optimizer
from lsdflow_training.checkpoints import Resumed
from lsdflow_training.curves import Curves
from lsdflow_training.data.patch import Patch
from lsdflow_training.data.volumes import Source
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.run import Training, TrainingResult
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.step import StepResult
from lsdflow_training.trainer import LOG, Trainer
from lsdflow_training.validation import read_patches

if TYPE_CHECKING:
    from lsdflow_tensorflow.engine import Engine


def train(
    settings: TrainingSettings,
    sources: Sequence[Source],
    folder: Path,
    training_key: str,
    lsd: FrozenLsd | None = None,
    cluster: Cluster | None = None,
) -> TrainingResult:
    """Train to settings.schedules.max_iteration, resuming from `folder`. cluster: the other processes, if any.

    Raises what lsdflow_training.trainer.train raises, and ConfigError for options that TensorFlow does not support.
    """
    cluster = cluster or Cluster()
    return TensorflowTrainer(shared_among(settings, cluster), sources, folder, training_key, lsd, cluster).run()


def share_among_cluster(training: Training) -> tuple[Training, Cluster]:
    """The training as shared by the processes of TF_CONFIG or SLURM, and this process among them.

    Raises ConfigError (78) for options that are not available with TensorFlow.
    """
    cluster = find_cluster(os.environ)
    return replace(training, settings=shared_among(training.settings, cluster)), cluster


@dataclass
class ClusterGroup(Group):
    """The processes of a cluster, all of which have the values of this one: nothing is exchanged between steps."""

    engine: Engine | None = None

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of this process for each."""
        return [list(values)] * self.ranks.world_size

    def wait_for_all(self) -> None:
        """Return when every process has called this, if there was a step."""
        if self.engine is not None:
            self.engine.wait_for_all()


class TensorflowTrainer(Trainer):
    """A training whose state is copied to torch's network and optimizer at checkpoints."""

    def __init__(
        self,
        settings: TrainingSettings,
        sources: Sequence[Source],
        folder: Path,
        training_key: str,
        lsd: FrozenLsd | None,
        cluster: Cluster,
    ) -> None:
        self.cluster, self.processes = cluster, ClusterGroup(Ranks(cluster.rank, cluster.size))
        super().__init__(settings, sources, folder, training_key, lsd, self.processes)

    def _build(self) -> None:
        self.device = torch.device("cpu")  # of the patches
        self.optimizer = make_optimizer(self.settings, self.trained)
        self.patches_per_step = self.settings.distribution.processes  # one of each replica

    @cached_property
    def engine(self) -> Engine:
        """TensorFlow, started with the first step: by then the processes that make patches were forked."""
        from lsdflow_tensorflow.engine import Engine, local_devices, make_strategy, start_tensorflow

        device, replicas = self.settings.device, self.patches_per_step
        start_tensorflow(self.settings.threads, device, replicas)
        strategy = make_strategy(self.cluster, local_devices(device, replicas))
        LOG.info("%s, %d replicas", type(strategy).__name__, strategy.num_replicas_in_sync)
        self.processes.engine = Engine(self.settings, strategy, self.trained, self.optimizer, self.lsd)
        return self.processes.engine

    def _train_step(self, patches: Sequence[Patch], keep_gradients: bool) -> StepResult:
        shown = self.engine.inspect(patches[-1]).predictions if keep_gradients else {}
        rate, minutes = self.optimizer.param_groups[0]["lr"], self._own_minutes()
        step = self.engine.step(patches, self.iteration + 1, rate, minutes=minutes, stop=bool(self.stop))
        self.stopping, self.minutes_of_rank_0 = step.stop, step.minutes
        return StepResult(torch.tensor(sum(step.losses.values())), step.losses, shown)

    def _snapshot(self, curves: Curves, patch: Patch, result: StepResult) -> None:
        """A snapshot of a step that was not known to be the last one shows the network after it."""
        super()._snapshot(curves, patch, result if result.predictions else self.engine.inspect(patch))

    def _validation_patches(self) -> list[Patch]:
        """All in the first process, which alone validates."""
        return read_patches(self.keys, self.settings, self.sources) if self.group.writes else []

    def _validation_loss(self) -> float | None:
        losses = [self.engine.loss(patch) for patch in self.patches]
        return sum(losses) / len(losses) if losses else None

    def _checkpoint(self, curves: Curves | None, *, validate: bool = True) -> None:
        if self.iteration != self.saved:
            self.engine.export(self.trained, self.optimizer)
        super()._checkpoint(curves, validate=validate)

    def _checkpoint_to_resume(self) -> Resumed | None:
        """All processes find the same one, because the first writes one only after a step of all."""
        return ckpt.newest_valid(self.checkpoints, self.training_key)
