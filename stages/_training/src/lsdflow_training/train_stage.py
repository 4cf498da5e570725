"""TrainStage: a stage that trains a network. train-lsd and train-acrlsd define what; the commands are here."""

from __future__ import annotations

import logging
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lsdflow_command.stage import Stage
from lsdflow_contract.checkpoint import Bundle, Kind
from lsdflow_contract.errors import StageError, UsageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_training.checks import training_problems
from lsdflow_training.config import TrainingConfig
from lsdflow_training.foreign.imported import imported
from lsdflow_training.measured import measure_training
from lsdflow_training.prepared import Prepared
from lsdflow_training.stage import (
    describe_network,
    prepare_training,
    run_training,
    training_plan,
    training_status,
    verify_training,
)

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd

LOG = logging.getLogger("lsdflow.training")
# The network to check settings with if the LSD network before it is not trained.
WITHOUT_LSDS: Kind = "affinities"


class TrainStage(Stage):
    """A stage that trains one network from the prepared training volumes."""

    config: ClassVar[type[TrainingConfig]]

    @abstractmethod
    def kind(self, experiment: Experiment) -> Kind:
        """The kind of network, which determines what it predicts."""

    def not_needed(self, experiment: Experiment) -> str | None:
        """A text that says why the experiment has no such network; None if it has one."""
        del experiment
        return None

    def lsd_bundle(self, experiment: Experiment) -> Bundle | None:
        """The description of the trained LSD network that this network depends on; None if it depends on none."""
        del experiment
        return None

    def frozen_lsd(self, experiment: Experiment) -> FrozenLsd | None:
        """The same LSD network with its weights."""
        del experiment
        return None

    def prepare(self, experiment: Experiment) -> Prepared:
        """The training, resolved from settings and volumes. Raises errors that can be found before it starts."""
        table = experiment.table(self.name, self.config)
        return prepare_training(experiment, table, self.name, self.kind(experiment), self.lsd_bundle(experiment))

    def run(self, experiment: Experiment) -> None:
        """Train. If the network is not needed or was imported, log that and do nothing."""
        reason = self._nothing_to_do(experiment)
        if reason is not None:
            LOG.info("%s: nothing to do, %s", self.name, reason)
            return
        run_training(self.prepare(experiment), self.frozen_lsd(experiment))

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before a training."""
        if self._nothing_to_do(experiment):
            return []
        table, kind = experiment.table(self.name, self.config), self.kind(experiment)
        try:
            lsd = self.lsd_bundle(experiment)
        except StageError as error:
            return [*training_problems(experiment, table, self.name, WITHOUT_LSDS), error]
        problems = training_problems(experiment, table, self.name, kind, lsd)
        return problems or problems_of([lambda: self.prepare(experiment)])

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """The plan of a run, or why there is nothing to do."""
        reason = self._nothing_to_do(experiment)
        return training_plan(self.prepare(experiment)) if reason is None else {"nothing_to_do": reason}

    def describe(self, experiment: Experiment) -> None:
        """Write the description of the network to be trained to `experiment.descriptions`."""
        if self._nothing_to_do(experiment) is None:
            describe_network(self.prepare(experiment), self.lsd_bundle(experiment))

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Speed and memory of some steps, whose files are written to `folder`."""
        reason = self._nothing_to_do(experiment)
        if reason is not None:
            raise UsageError(f"{self.name} has nothing to do: {reason}")
        return measure_training(self.prepare(experiment), folder, self.frozen_lsd(experiment))

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """The status of the training so far."""
        reason = self._nothing_to_do(experiment)
        return {**training_status(experiment, self.name), **({} if reason is None else {"nothing_to_do": reason})}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Load the best bundle of the finished training and check its weights."""
        reason = self.not_needed(experiment)
        return verify_training(experiment, self.name) if reason is None else {"nothing_to_do": reason, "verified": True}

    def _nothing_to_do(self, experiment: Experiment) -> str | None:
        return self.not_needed(experiment) or imported(experiment, self.name)
