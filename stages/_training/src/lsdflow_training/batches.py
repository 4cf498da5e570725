"""Batches by number: batch i is the same whenever and wherever it is made, in this process or by workers ahead of time.

gunpowder draws all randomness of a batch from the seed of its request.  Its PreCache sends every worker the same
request, with the same seed, so a fixed seed gives the same batch again and again; here the workers draw batch numbers
from a shared counter, and the seed follows from the number.  With several workers batches may arrive in another
order, but each number comes once.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import gunpowder as gp
import numpy as np

from lsdflow_contract.errors import InternalError, StageError
from lsdflow_training.profiling import NodeTimes


def batch_seed(seed: int, number: int) -> int:
    """Seed of batch `number` (32 bit); batches of one training and of two seeds are independent."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


class NumberedPreCache(gp.PreCache):  # type: ignore[misc]
    """PreCache whose workers make batches first, first + 1, ... instead of the same one."""

    def __init__(self, seed: int, first: int, cache_size: int, num_workers: int) -> None:
        super().__init__(cache_size=cache_size, num_workers=num_workers)
        self.seed = seed
        self.counter = multiprocessing.Value("q", first)

    def _run_worker(self) -> gp.Batch:
        # forked from a process that only remembers signals; the pool ends its workers with SIGTERM
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with self.counter.get_lock():
            number = self.counter.value
            self.counter.value += 1
        request = seeded(self.current_request, batch_seed(self.seed, number))
        with plain_errors(number):
            return self.get_upstream_provider().request_batch(request)


def seeded(request: gp.BatchRequest, seed: int) -> gp.BatchRequest:
    """A copy of the request whose batch is determined by `seed`."""
    copy = gp.BatchRequest(random_seed=seed)
    for key, spec in request.items():
        copy[key] = spec.copy()
    return copy


@contextmanager
def plain_errors(number: int) -> Iterator[None]:
    """Let the error that a node met through, instead of the pages gunpowder wraps around it."""
    try:
        yield
    except (gp.PipelineRequestError, gp.BatchRequestError) as error:
        cause: BaseException = error
        while cause.__context__ is not None and not isinstance(cause, StageError):
            cause = cause.__context__
        if isinstance(cause, StageError):
            raise cause from None
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
    times: NodeTimes | None = None,
) -> Iterator[Iterator[gp.Batch]]:
    """Batches first, first + 1, ... of the pipeline; num_workers = 0 makes them in this process, in order.

    times: collects how long each node took.
    """
    if num_workers > 0:
        pipeline = pipeline + NumberedPreCache(seed, first, cache_size, num_workers)
    with gp.build(pipeline):
        yield _numbered(pipeline, request, seed, first, times)


def _numbered(
    pipeline: gp.Pipeline, request: gp.BatchRequest, seed: int, first: int, times: NodeTimes | None
) -> Iterator[gp.Batch]:
    number = first
    while True:
        with plain_errors(number):
            batch = pipeline.request_batch(seeded(request, batch_seed(seed, number)))
        if times is not None:
            times.add(batch.profiling_stats)
        yield batch
        number += 1
