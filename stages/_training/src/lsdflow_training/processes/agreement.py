"""What the processes of a training agree on in each step: the losses, whether to stop, how much time is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from lsdflow_contract.errors import BadData
from lsdflow_training.interruption import StopRequest
from lsdflow_training.network_step import StepResult
from lsdflow_training.processes.group import Group
from lsdflow_training.recipe import Recipe


class Agreement:
    """stopping: somebody got a signal, and all know. minutes: of the first process; none = each has its own clock."""

    def __init__(self, group: Group, recipe: Recipe) -> None:
        self.group, self.recipe = group, recipe
        self.stopping = False
        self.minutes: float | None = None

    def on_step(
        self, number: Callable[[], int], stop: StopRequest, minutes: Callable[[], float]
    ) -> Callable[[StepResult], StepResult] | None:
        """What turns the result of this process into that of all; none where there is nobody else.

        It raises BadData in all processes if the loss of one is not finite.
        """

        def agree(mine: StepResult) -> StepResult:
            rows = self.group.gather([float(bool(stop)), minutes(), *mine.losses.values()])
            for rank, row in enumerate(rows):
                if not all(map(math.isfinite, row[2:])):
                    raise self.not_finite(number(), sum(row[2:]), rank)
            self.stopping, self.minutes = any(row[0] for row in rows), rows[0][1]
            means = [sum(row[i] for row in rows) / len(rows) for i in range(2, len(rows[0]))]
            return replace(mine, losses=dict(zip(mine.losses, means, strict=True)))

        return None if self.group.alone else agree

    def stops(self, stop: StopRequest) -> bool:
        """Whether to stop: alone at once, among several when all have agreed."""
        return bool(stop) if self.group.alone else self.stopping

    def not_finite(self, number: int, loss: float, rank: int = 0) -> BadData:
        """The error of a step, naming the process and its batches if there are several."""
        step, world = self.recipe.step, self.group.ranks.world
        first = (number - 1) * step.effective_batch + rank + 1
        batches = ", ".join(map(str, range(first, first + step.effective_batch, world)))
        every = self.recipe.schedules.checkpoint_every
        return BadData(
            "the loss is not finite",
            where=f"iteration {number}" + ("" if step.effective_batch == 1 else f", process {rank}, batch {batches}"),
            found=f"loss {loss}",
            hint="lower learning_rate, or look for NaN in the volumes (prepare validate); "
            f"the last checkpoint is that of iteration {(number - 1) // every * every}",
        )
