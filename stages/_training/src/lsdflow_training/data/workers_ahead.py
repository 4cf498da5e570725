"""Processes that make batches ahead of time, handed out in the order of their numbers.

Worker w of n makes batches first + w, first + w + n, ... into a queue of its own, and the queues are read in turn.  So
the training sees batch after batch whatever the number of workers, and a training that was cut goes on with the very
next one; gunpowder's PreCache hands them out as they happen to arrive.  A worker ends when its training ends, killed
or not: the pool of gunpowder stays for ever if the training is killed while its queue is full.
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
        # with the last writer gone, a worker that is killed half-way through a batch is seen as an end, not as a wait
        self._queue._writer.close()

    def next(self) -> gp.Batch:
        """The next batch of this worker; raises what it met, InternalError if it died."""
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
        """End the process; what it had ready is dropped."""
        self._process.kill()
        self._process.join()
        self._queue.close()


def _work(make: Make, first: int, step: int, batches: Any, training: int) -> None:
    """Body of the process. Signals to the whole group are for the training, which then ends its workers.

    The process is forked from one that may use a GPU already, and cannot use it after that; so it sees none.
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
