"""Stage: a step of the chain as an object. Every command is implemented once for all stages (app.py).

A stage that processes blocks is a BlockStage of lsdflow_runtime. Worker processes load a stage by its entry point in
the group "lsdflow.stages" of its pyproject.toml.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from lsdflow_contract.errors import InternalError, StageError, UsageError
from lsdflow_contract.experiment import Experiment

ENTRY_POINTS = "lsdflow.stages"


class Stage(ABC):
    """The operations of a stage on an experiment. It has no state, so any process can create its own."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, experiment: Experiment) -> None:
        """Compute everything that is not done yet, and write a manifest. Raises the StageError that stopped it."""

    @abstractmethod
    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before a run; writes nothing."""

    @abstractmethod
    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """What a run would do."""

    def describe(self, experiment: Experiment) -> None:
        """Write the outputs of a run without voxels and weights, so that later stages can be planned.

        They are written to `experiment.descriptions`. Raises the errors of `plan`. The default is for stages whose
        results no other stage reads.
        """
        del experiment

    @abstractmethod
    def status(self, experiment: Experiment) -> dict[str, Any]:
        """What is done."""

    @abstractmethod
    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read the results of a finished run again and check them. Raises BadData (65) for damaged ones."""

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Recompute only missing or damaged data; for stages that process blocks."""
        raise NotImplementedError(self.name)

    def join(self, experiment: Experiment) -> None:
        """Process blocks for a coordinator in another job; for stages that process blocks."""
        raise NotImplementedError(self.name)

    def worker(self, experiment: Experiment) -> None:
        """Body of a worker process: process blocks for the coordinator named in the environment."""
        raise NotImplementedError(self.name)

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block, or of some training steps, in `folder`. UsageError (2) for other stages."""
        del experiment, folder
        raise UsageError(f"{self.name} does not work on blocks or in steps: there is none to measure")

    def drop_rows(self, experiment: Experiment, keys: Sequence[str]) -> dict[str, Any]:
        """Remove marks and rows of results from the store; `keys` may be prefixes. Returns facts of the removal."""
        del experiment, keys
        return {"dropped": []}

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """The devices and the store that are available on this machine."""
        del experiment
        return {}


def load_stage(name: str) -> Stage:
    """The installed stage with this name. InternalError (70) if its package has no entry point."""
    for found in entry_points(group=ENTRY_POINTS, name=name):
        stage: Stage = found.load()()
        return stage
    raise InternalError("no such stage is installed", wanted=name, fix="install its package again")
