"""The result of a training, with either backend."""

from __future__ import annotations

from dataclasses import dataclass

from lsdflow_contract.checkpoint import BestCheckpoint


@dataclass(frozen=True)
class Outcome:
    """Last iteration of a training, best checkpoint (None: another process has it), total minutes, and speed.

    ended_by: max_iteration, max_minutes, or the verdict on the validation loss (plateau, overfit).
    data_wait_share: share of the time spent waiting for batches.
    """

    iteration: int
    best: BestCheckpoint | None
    minutes: float
    it_per_s: float
    ended_by: str
    data_wait_share: float | None = None
