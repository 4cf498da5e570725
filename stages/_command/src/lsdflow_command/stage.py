"""Stage: a step of the chain as an object. Every command is written once over it (app.py).

A stage that processes blocks is a BlockStage of lsdflow_runtime. Worker processes find a stage by its entry point, in
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
    """What a stage can do with an experiment. It holds no state, so any process can make its own."""

    name: ClassVar[str]
    repairable: ClassVar[bool] = False

    @abstractmethod
    def run(self, experiment: Experiment) -> None:
        """Do what is not done yet, and leave a manifest. Raises the StageError that stopped it."""

    @abstractmethod
    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before a run; writes nothing."""

    @abstractmethod
    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """What a run would do."""

    def describe(self, experiment: Experiment) -> None:
        """Leave what a run would leave, but without voxels and weights, so that later stages can be planned.

        `experiment.descriptions` is the folder. Raises what `plan` raises. Default: no other stage reads the results.
        """
        del experiment

    @abstractmethod
    def status(self, experiment: Experiment) -> dict[str, Any]:
        """What is done."""

    @abstractmethod
    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read the results of a finished run again and check them. Raises BadData (65) for damaged ones."""

    def repair(self, experiment: Experiment) -> dict[str, Any]:
        """Recompute what is missing or damaged, and nothing else; for stages that are `repairable`."""
        raise NotImplementedError(self.name)

    def join(self, experiment: Experiment) -> None:
        """Process blocks for a coordinator in another job. UsageError (2) for a stage without blocks."""
        del experiment
        raise UsageError(f"{self.name} does not work on blocks: it has no workers", fix=f"{self.name} run")

    def worker(self, experiment: Experiment) -> None:
        """Body of a worker process: process blocks for the coordinator that the environment names."""
        raise NotImplementedError(self.name)

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block, or of some training steps, done in `folder`. UsageError (2) for others."""
        del experiment, folder
        raise UsageError(f"{self.name} does not work on blocks or in steps: there is none to measure")

    def drop_rows(self, experiment: Experiment, keys: Sequence[str]) -> dict[str, Any]:
        """Remove from the store what results of these keys, or of their beginnings, have there; facts of it."""
        del experiment, keys
        return {"dropped": []}

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """The devices and the store that this command finds on this machine."""
        del experiment
        return {}


def load_stage(name: str) -> Stage:
    """The installed stage of a name. InternalError (70) if its package has no entry point."""
    for found in entry_points(group=ENTRY_POINTS, name=name):
        stage: Stage = found.load()()
        return stage
    raise InternalError("no such stage is installed", wanted=name, fix="install its package again")
