"""Values that the processes of a training exchange in each step: losses, whether to stop, and elapsed time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from lsdflow_contract.errors import BadData
from lsdflow_training.interruption import StopRequest
from lsdflow_training.network_step import StepResult
from lsdflow_training.not_finite import TOO_LARGE, all_finite, batches_of, not_finite
from lsdflow_training.processes.group import Group
from lsdflow_training.recipe import Recipe


class Agreement:
    """stopping: a process received a signal, and all know it. minutes: of the first process; None = use own clock."""

    def __init__(self, group: Group, recipe: Recipe) -> None:
        self.group, self.recipe = group, recipe
        self.stopping = False
        self.minutes: float | None = None

    def on_step(
        self, done: Callable[[], tuple[int, int]], stop: StopRequest, minutes: Callable[[], float]
    ) -> Callable[[StepResult], StepResult] | None:
        """A function that turns the result of this process into that of all; None if this is the only process.

        done: returns the current iteration and that of the newest checkpoint.  The function raises BadData in all
        processes if the loss of one is not finite.
        """

        def agree(mine: StepResult) -> StepResult:
            rows = self.group.gather([float(bool(stop)), minutes(), *mine.losses.values()])
            for rank, row in enumerate(rows):
                if not all(map(math.isfinite, row[2:])):
                    raise self.loss_not_finite(*done(), sum(row[2:]), rank)
            self.stopping, self.minutes = any(row[0] for row in rows), rows[0][1]
            means = [sum(row[i] for row in rows) / len(rows) for i in range(2, len(rows[0]))]
            return replace(mine, losses=dict(zip(mine.losses, means, strict=True)))

        return None if self.group.alone else agree

    def stops(self, stop: StopRequest) -> bool:
        """Whether to stop: a single process stops at once, several stop when all have agreed."""
        return bool(stop) if self.group.alone else self.stopping

    def loss_not_finite(self, done: int, saved: int, loss: float, rank: int = 0) -> BadData:
        """The error of the step after `done` iterations, with the process (if there are several) and its batches."""
        batches = self._batches(done + 1)[rank :: self.group.ranks.world]
        process = None if self.group.alone else rank
        return not_finite("loss is", f"loss {loss}", number=done + 1, saved=saved, batches=batches, process=process)

    def require_finite(self, network: nn.Module, done: int, saved: int) -> None:
        """Raise BadData in all processes if the last step, of a finite loss, made a weight NaN or infinite."""
        if not all(row[0] for row in self.group.gather([float(all_finite(network))])):
            raise not_finite("weights are", TOO_LARGE, number=done, saved=saved, batches=self._batches(done))

    def _batches(self, number: int) -> range:
        return batches_of(number, self.recipe.step.effective_batch)
