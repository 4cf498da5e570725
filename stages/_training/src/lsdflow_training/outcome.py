"""What a training tells at its end, whichever backend trained."""

from __future__ import annotations

from dataclasses import dataclass

from lsdflow_contract.checkpoint import BestCheckpoint


@dataclass(frozen=True)
class Outcome:
    """What a training left: its last iteration, the bundle to use (None: another process knows), minutes, speed.

    ended_by: max_iteration, max_minutes, or what its validation loss showed (plateau, overfit).
    data_wait_share: how much of its time it waited for batches.
    """

    iteration: int
    best: BestCheckpoint | None
    minutes: float
    it_per_s: float
    ended_by: str
    data_wait_share: float | None = None
