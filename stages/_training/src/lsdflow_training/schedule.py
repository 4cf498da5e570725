"""The learning rate over the training: constant (published), or one cycle of warm-up and cosine decay (tiny)."""

from __future__ import annotations

import math

from lsdflow_training.recipe import Schedules


def scaled(rule: str, effective_batch: int) -> float:
    """Factor of the learning rate for a step of effective_batch patches: 1 (none), n (linear) or its root (sqrt)."""
    return {"none": 1.0, "linear": float(effective_batch), "sqrt": math.sqrt(effective_batch)}[rule]


def learning_rate(how: Schedules, iteration: int, minutes: float) -> float:
    """Learning rate of the step that makes `iteration` (1, 2, ...), `minutes` into the training.

    one_cycle: linear warm-up, then half a cosine down to 1 % at the end, which is max_iteration or max_minutes,
    whichever comes first.
    """
    if how.schedule == "constant":
        return how.learning_rate
    warm = min(1.0, iteration / max(how.warmup_iterations, 1))
    return how.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress(how, iteration, minutes))))


def is_over(how: Schedules, iteration: int, minutes: float) -> bool:
    """Whether the iterations or the minutes (after at least one iteration) are used up."""
    out_of_time = how.max_minutes is not None and minutes >= how.max_minutes and iteration > 0
    return iteration >= how.max_iteration or out_of_time


def progress(how: Schedules, iteration: int, minutes: float) -> float:
    """Share of the training that is done, 0 to 1: of its iterations or of its time, whichever is larger."""
    share = iteration / max(how.max_iteration, 1)
    if how.max_minutes is not None:
        share = max(share, minutes / how.max_minutes)
    return min(share, 1.0)
