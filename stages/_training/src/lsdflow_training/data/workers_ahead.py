"""Processes that make batches in advance; batches are delivered in the order of their numbers.

Worker w of n puts batches first + w, first + w + n, ... into its own queue, and the queues are read in turn.  So the
order of the batches does not depend on the number of workers, and a resumed training continues with the very next
batch; gunpowder's PreCache delivers batches as they arrive.  A worker ends when its training ends, even if that is
killed; gunpowder's pool stays forever if the training is killed while its queue is full.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from typing import Any

import gunpowder as gp

from lsdflow_command.processes import end_with_parent
from lsdflow_contract.errors import InternalError, StageError

POLL_SECONDS = 1.0

Make = Callable[[int], gp.Batch]


class BatchWorker:
    """One process that makes batches first, first + step, ... and keeps up to `ahead` of them ready."""

    def __init__(self, make: Make, first: int, step: int, ahead: int) -> None:
        context = multiprocessing.get_context("fork")
        queue_of_worker: Any = context.Queue(max(1, ahead))
        self._queue = queue_of_worker
        self._process = context.Process(target=_work, args=(make, first, step, self._queue, os.getpid()), daemon=True)
        self._process.start()
        # close our end for writing: if a worker is killed in the middle of a batch, reading then fails at once
        self._queue._writer.close()

    def next(self) -> gp.Batch:
        """The next batch of this worker. Raises the error that occurred in it, and InternalError if it died."""
        while True:
            alive = self._process.is_alive()
            try:
                item = self._queue.get(timeout=POLL_SECONDS)
            except (queue.Empty, EOFError, OSError) as error:
                if alive and isinstance(error, queue.Empty):
                    continue
                self._process.join(POLL_SECONDS)
                raise InternalError(
                    "a process that makes patches has died",
                    where=f"process {self._process.pid}",
                    found=f"exit code {self._process.exitcode}",
                    fix="run the same command again to resume; -9 is often a lack of memory: fewer num_workers",
                ) from error
            if isinstance(item, StageError):
                raise item
            return item

    def stop(self) -> None:
        """Kill the process; finished batches are dropped."""
        self._process.kill()
        self._process.join()
        self._queue.close()


def _work(make: Make, first: int, step: int, batches: Any, training: int) -> None:
    """Body of the process. It ignores signals to the process group: the training handles them and ends its workers.

    A process forked from one that uses a GPU cannot use the GPU, so no GPU is visible here.
    """
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    end_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    number = first
    while os.getppid() == training:
        try:
            batches.put(make(number))
        except StageError as error:
            batches.put(error)
        number += step
