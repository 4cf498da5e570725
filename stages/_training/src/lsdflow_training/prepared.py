"""A training that is ready to start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import work_key
from lsdflow_contract.trainings import training_folder
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.volumes import Source
from lsdflow_training.recipe import Recipe
from lsdflow_training.resolve import training_parameters


@dataclass(frozen=True)
class Prepared:
    """A training that is ready to start: everything is resolved and checked, nothing is written."""

    experiment: Experiment
    config: TrainingConfig
    recipe: Recipe
    sources: list[Source]
    inputs: dict[str, str]

    @property
    def key(self) -> str:
        """Key of the training: a hash of its parameters and inputs."""
        return work_key(self.recipe.stage, json.loads(json.dumps(training_parameters(self.recipe))), self.inputs)

    @property
    def folder(self) -> Path:
        """The folder in the results that the training writes to; named by its key."""
        return training_folder(self.experiment.layout, self.recipe.stage, self.key)
