"""Measure the share of time that a training waits for batches: if it is large, the GPU is idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from lsdflow_training.curves import Curves

LOG = logging.getLogger("lsdflow.training")
FIRST_STEPS = 100
TOO_MUCH = 0.1


class DataWait:
    """Used as `with wait: take the next batches`.  Counts from the second step of a run on, because the first one
    starts what makes batches.

    warn: log a warning once, after the first steps, if the share is too large.
    """

    def __init__(self, warn: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._warn, self._clock = warn, clock
        self._steps = 0
        self._began = self._entered = self._waited = 0.0

    def __enter__(self) -> None:
        self._entered = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock()
        self._steps += 1
        if self._steps == 1:
            self._began = now
            return
        self._waited += now - self._entered
        share = self.share
        if self._warn and self._steps > FIRST_STEPS and share is not None and share > TOO_MUCH:
            self._warn = False
            LOG.warning(
                "%.0f %% of the time goes by waiting for patches: more num_workers (and cores for them), or "
                'pipeline = "gpu"; the table "data pipeline" shows what costs',
                100 * share,
            )

    @property
    def share(self) -> float | None:
        """Time spent waiting as a share of all time, 0 to 1; None before the second step."""
        gone = self._clock() - self._began
        return self._waited / gone if self._steps > 1 and gone > 0 else None

    def log(self, curves: Curves, iteration: int) -> None:
        """Add the current share to the curves and the log."""
        share = self.share
        if share is not None:
            curves.add_data_wait(iteration, share)
            LOG.info("%.1f %% of the time waiting for patches", 100 * share)
