"""The progress line of a training: iterations, rate, and an ETA that includes max_minutes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from lsdflow_command.progress import MONITOR, Progress
from lsdflow_training.recipe import Recipe
from lsdflow_training.schedule import seconds_left


def training_progress(recipe: Recipe, iteration: int, minutes: float, shown: bool) -> Progress | nullcontext[None]:
    """Progress from `iteration` on, `minutes` after the start; an empty context unless `shown` (the first process)."""
    if not shown:
        return nullcontext()
    how = recipe.schedules
    progress = Progress(recipe.stage, how.max_iteration, "iteration", iteration, seconds_left(how, minutes))
    progress.gauges["patches_per_iteration"] = recipe.step.effective_batch
    return progress


def count_iteration(progress: Progress, losses: Mapping[str, float], learning_rate: float) -> None:
    """Count one more iteration. losses: by output; their sum is the loss."""
    progress.gauges["learning_rate"] = learning_rate
    progress.advance(1, losses, loss=sum(losses.values()))


def tell_validation(loss: float) -> None:
    """Set the newest validation loss in the metrics of this process."""
    monitor = MONITOR.get()
    if monitor is not None and monitor.progress is not None:
        monitor.progress.gauges["validation_loss"] = loss
