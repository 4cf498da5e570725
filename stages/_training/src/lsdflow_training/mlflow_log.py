"""Log the curves of a training also to MLflow: one MLflow run per training, however often it is resumed.

A separate thread talks to MLflow, so that no step waits for it.  Any failure gives one warning, and the training
continues without MLflow.  MLflow reads user and password from its own environment variables or file.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import Interrupted
from lsdflow_training.mlflow_run import MlflowRun, Point, RunFacts, run_facts
from lsdflow_training.mlflow_uri import tracking_uri
from lsdflow_training.recipe import Recipe

LOG = logging.getLogger("lsdflow.training")
# Points of this many seconds are sent in one request.
COLLECT_S = 1.0
# How long the end of a training may wait for MLflow: less than the time that SLURM leaves after its signal.
CLOSE_S = 10.0
# Variables that are already set stay.  No jitter: it would use the random numbers of the training.
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}


@dataclass(frozen=True)
class End:
    """How a run of the training ended. status: of MLflow (FINISHED, KILLED, FAILED)."""

    status: str
    reason: str
    iteration: int


class MlflowLog:
    """Accepts points without delay and sends them in a thread.

    ended: returns what ended the training (None: a signal), and the iteration.
    """

    def __init__(self, uri: str, folder: Path, facts: RunFacts, ended: Callable[[], tuple[str | None, int]]) -> None:
        self._module = import_mlflow()
        self._uri, self._folder, self._facts, self._ended = uri, folder, facts, ended
        self._waiting: queue.SimpleQueue[Point | End] = queue.SimpleQueue()
        self._closing = threading.Event()
        # a daemon: Python does not wait for it when it exits
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add values of an iteration.  The first call starts the thread, because workers are forked before it."""
        if self._thread.ident is None:
            self._thread.start()
        if self._thread.is_alive():
            self._waiting.put(Point(iteration, int(1000 * time.time()), dict(values)))

    def close(self, error: BaseException | None) -> None:
        """Send the remaining points and how the training ended; gives up after CLOSE_S."""
        if self._thread.ident is None:
            return
        self._waiting.put(self._end(error))
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            LOG.warning("MLflow has not taken the last points within %g s; loss.csv has all", CLOSE_S)

    def _end(self, error: BaseException | None) -> End:
        reason, iteration = self._ended()
        if error is not None and not isinstance(error, Interrupted):
            return End("FAILED", f"{type(error).__name__}: {error}".splitlines()[0], iteration)
        if reason is None or error is not None:
            return End("KILLED", "interrupted", iteration)
        return End("FINISHED", reason, iteration)

    def _send_all(self) -> None:
        try:
            run = MlflowRun(self._module, self._uri, tracking_uri(self._uri, self._folder), self._folder, self._facts)
            LOG.info("MLflow: run %s", run.run_id)
            end = None
            while end is None:
                points, end = self._taken()
                run.log(points)
            run.end(end.status, {"ended_by": end.reason, "iteration": str(end.iteration)})
        except Exception as error:  # noqa: BLE001 - no error of MLflow may end a training
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            LOG.warning("MLflow cannot be used, the training goes on without it: %s", said)

    def _taken(self) -> tuple[list[Point], End | None]:
        """Wait for a point, then collect more for COLLECT_S."""
        taken = [self._waiting.get()]
        self._closing.wait(COLLECT_S)
        while not self._waiting.empty():
            taken.append(self._waiting.get())
        ends = [item for item in taken if isinstance(item, End)]
        return [item for item in taken if isinstance(item, Point)], ends[0] if ends else None


def open_mlflow(
    recipe: Recipe, folder: Path, training_key: str, ended: Callable[[], tuple[str | None, int]]
) -> MlflowLog | None:
    """The log that the recipe requests, or None."""
    uri = recipe.records.mlflow
    return None if uri is None else MlflowLog(uri, folder, run_facts(recipe, training_key), ended)


def import_mlflow() -> Any:
    """Import mlflow without telemetry and without its own log messages: our one warning is enough."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow

    for noisy in ("mlflow", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return mlflow
