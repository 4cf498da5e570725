"""Batches by number: batch i is the same in this process and in every worker, whenever it is made.

gunpowder draws all random numbers of a batch from the seed of its request.  Its PreCache sends the same request to all
workers, so a fixed seed repeats the same batch. Here each worker makes its own batch numbers, the seed follows from the
number, and batches are delivered in the order of their numbers with any number of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import gunpowder as gp
import numpy as np
from gunpowder.profiling import Timing

from lsdflow_contract.errors import InternalError, StageError
from lsdflow_network.out_of_memory import is_out_of_memory
from lsdflow_training.data.profiling import NodeTimes
from lsdflow_training.data.workers_ahead import BatchWorker
from lsdflow_training.out_of_memory import does_not_fit


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
