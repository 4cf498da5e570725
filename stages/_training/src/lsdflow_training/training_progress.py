"""The progress line of a training: iterations, rate, and an ETA that knows of max_minutes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from lsdflow_command.progress import Progress
from lsdflow_training.recipe import Recipe
from lsdflow_training.schedule import seconds_left


def training_progress(recipe: Recipe, iteration: int, minutes: float, shown: bool) -> Progress | nullcontext[None]:
    """Progress from `iteration` on, `minutes` into the training; nothing unless `shown` (one of several processes)."""
    if not shown:
        return nullcontext()
    how = recipe.schedules
    return Progress(recipe.stage, how.max_iteration, "iteration", iteration, seconds_left(how, minutes))


def count_iteration(progress: Progress, losses: Mapping[str, float]) -> None:
    """One more iteration is done; `losses` are the parts of its loss."""
    progress.advance(1, losses, loss=sum(losses.values()))
