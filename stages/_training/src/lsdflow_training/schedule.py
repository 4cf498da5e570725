"""The learning rate over the training: constant (published), or one cycle of warm-up and cosine decay (tiny).

With max_minutes, one cycle follows the larger of two shares: of the iterations and of the time. So it is complete when
the training ends, however slow the machine is, and runs of different speed do not give the same weights. Without
max_minutes the learning rate depends only on the iteration.
"""

from __future__ import annotations

import math
from typing import Literal

from lsdflow_training.settings import Schedules

# With max_minutes, the warm-up ends at the latest after this share of the training.
LONGEST_WARM_UP = 0.1


def learning_rate(schedules: Schedules, iteration: int, minutes: float) -> float:
    """Learning rate of the step that makes `iteration` (1, 2, ...), `minutes` after the start of the training.

    one_cycle: linear warm-up, then half a cosine down to 1 %, where it stays: after schedule_iterations (max_iteration)
    or max_minutes, whichever comes first.
    """
    if schedules.schedule == "constant":
        return schedules.learning_rate
    done = progress(schedules, iteration, minutes)
    warm = min(1.0, iteration / max(schedules.warmup_iterations, 1))
    if schedules.max_minutes is not None:
        warm = max(warm, min(1.0, done / LONGEST_WARM_UP))
    return schedules.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def limit_reached(
    schedules: Schedules, iteration: int, minutes: float
) -> Literal["max_iteration", "max_minutes"] | None:
    """The limit that ends the training: its iterations, or its minutes (after at least one iteration); else None."""
    if iteration >= schedules.max_iteration:
        return "max_iteration"
    late = schedules.max_minutes is not None and minutes >= schedules.max_minutes
    return "max_minutes" if late and iteration > 0 else None


def seconds_left(schedules: Schedules, minutes: float) -> float | None:
    """Seconds left of max_minutes, `minutes` after the start of the training; None without such a limit."""
    return None if schedules.max_minutes is None else max(0.0, 60 * (schedules.max_minutes - minutes))


def progress(schedules: Schedules, iteration: int, minutes: float) -> float:
    """Share of the cycle that is done, 0 to 1: the larger of the shares of iterations and of time."""
    share = iteration / max(schedules.schedule_iterations or schedules.max_iteration, 1)
    if schedules.max_minutes is not None:
        share = max(share, minutes / schedules.max_minutes)
    return min(share, 1.0)
