"""Batches by number: batch i is the same in this process and in every worker, whenever it is made.

gunpowder draws all random numbers of a batch from the seed of its request.  Its PreCache sends the same request to all
workers, so a fixed seed repeats the same batch. Here each worker makes its own batch numbers, the seed follows from the
number, and batches are delivered in the order of their numbers with any number of workers.

Worker w of n puts batches first + w, first + w + n, ... into its own queue, and the queues are read in turn. So the
order of the batches does not depend on the number of workers, and a resumed training continues with the very next
batch; gunpowder's PreCache delivers batches as they arrive. A worker ends when its training ends, even if that is
killed; gunpowder's pool stays forever if the training is killed while its queue is full.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gunpowder as gp
import numpy as np
from gunpowder.profiling import Timing

from lsdflow_command.processes import end_with_parent
from lsdflow_contract.errors import InternalError, StageError
from lsdflow_network.out_of_memory import is_out_of_memory
from lsdflow_training.failures import does_not_fit
from lsdflow_training.timing import NodeTimes

POLL_SECONDS = 1.0  # after which a silent worker process is checked


def batch_seed(seed: int, number: int) -> int:
    """Seed of batch `number` (32 bit); independent between the batches of a training and between seeds."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


class NumberedPreCache(gp.BatchFilter):  # type: ignore[misc]
    """Batches first, first + stride, ..., made in advance by processes: cache_size in total, at least one in each."""

    def __init__(self, seed: int, first: int, cache_size: int, num_workers: int, stride: int = 1) -> None:
        self.seed, self.first, self.stride = seed, first, stride
        self.cache_size, self.num_workers = cache_size, num_workers
        self.request: gp.BatchRequest | None = None
        self.workers: list[BatchWorker] = []
        self.turns: Iterator[BatchWorker] = iter(())

    def teardown(self) -> None:
        """Stop the processes."""
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def provide(self, request: gp.BatchRequest) -> gp.Batch:
        """The next batch. The first request starts the processes, which then make batches for that request."""
        timing = Timing(self)
        timing.start()
        if self.request is None:
            self.request, count = request.copy(), self.num_workers
            ahead = self.cache_size // count
            begins = [self.first + w * self.stride for w in range(count)]
            self.workers = [BatchWorker(self._make, begin, count * self.stride, ahead) for begin in begins]
            self.turns = itertools.cycle(self.workers)
        if request != self.request:
            raise InternalError("batches made ahead of time are all of one kind", found=request)
        batch = next(self.turns).next()
        timing.stop()
        batch.profiling_stats.add(timing)
        return batch

    def _make(self, number: int) -> gp.Batch:
        with plain_errors(number):
            return self.get_upstream_provider().request_batch(seeded(self.request, batch_seed(self.seed, number)))


def seeded(request: gp.BatchRequest, seed: int) -> gp.BatchRequest:
    """A copy of the request with the random seed `seed`, which determines its batch."""
    copy = gp.BatchRequest(random_seed=seed)
    for key, spec in request.items():
        copy[key] = spec.copy()
    return copy


@contextmanager
def plain_errors(number: int) -> Iterator[None]:
    """Raise the original error of a node instead of gunpowder's long error around it."""
    try:
        yield
    except (gp.PipelineRequestError, gp.BatchRequestError) as error:
        cause: BaseException = error
        while cause.__context__ is not None and not isinstance(cause, StageError):
            cause = cause.__context__
        if isinstance(cause, StageError):
            raise cause from None
        if is_out_of_memory(cause):
            raise does_not_fit(cause, f"making batch {number}") from error
        raise InternalError(
            "a patch could not be made", where=f"batch {number}", found=f"{type(cause).__name__}: {cause}"
        ) from error


@contextmanager
def batch_stream(
    pipeline: gp.Pipeline,
    request: gp.BatchRequest,
    *,
    seed: int,
    first: int,
    num_workers: int,
    cache_size: int,
    stride: int = 1,
    times: NodeTimes | None = None,
) -> Iterator[Iterator[gp.Batch]]:
    """Batches first, first + stride, ... of the pipeline; num_workers = 0 makes them in this process, in order.

    times: collects the time of each node.
    """
    if num_workers > 0:
        pipeline = pipeline + NumberedPreCache(seed, first, cache_size, num_workers, stride)
    numbers = itertools.count(first, stride)
    with gp.build(pipeline):
        yield _numbered(pipeline, request, seed, numbers, times)


def _numbered(
    pipeline: gp.Pipeline, request: gp.BatchRequest, seed: int, numbers: Iterator[int], times: NodeTimes | None
) -> Iterator[gp.Batch]:
    for number in numbers:
        with plain_errors(number):
            batch = pipeline.request_batch(seeded(request, batch_seed(seed, number)))
        if times is not None:
            times.add(batch.profiling_stats)
        yield batch


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
