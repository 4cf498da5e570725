"""The batches that a process trains on, in order: their numbers, and what makes them.

With pipeline = "gpu", the training device makes patches from volumes in its memory, without data workers:

    one thread       draws batch first, first + stride, ...
    another          makes its patch on a CUDA stream of its own: two ahead
    training         receives them in their order

If volumes do not fit on the device, num_workers threads draw and read crops.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import perf_counter
from typing import Any, TypeVar

import gunpowder as gp
import torch

from lsdflow_contract.errors import InternalError
from lsdflow_training.data.batches import batch_seed, batch_stream
from lsdflow_training.data.device_volumes import Crops, device_volumes, make_patch
from lsdflow_training.data.draw import Drawer, Drawn
from lsdflow_training.data.patch import Patch
from lsdflow_training.data.pipeline import Keys, batch_request, training_pipeline
from lsdflow_training.data.volumes import Source
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.timing import NodeTimes

PATCHES_AHEAD = 2
A = TypeVar("A")
B = TypeVar("B")


def make_stream(
    keys: Keys, settings: TrainingSettings, sources: Sequence[Source], first: int, stride: int, times: NodeTimes
) -> AbstractContextManager[Iterator[gp.Batch]]:
    """An endless iterator over the batches first, first + stride, ...; what makes them runs while the context is open.

    Batch i does not depend on the process that makes it. With pipeline = "gpu" they are patches on the device, see
    `gpu_stream`.
    """
    if settings.pipeline == "gpu":
        device = torch.device(settings.device)
        return gpu_stream(keys, settings, sources, first=first, stride=stride, device=device, times=times)
    return batch_stream(
        training_pipeline(keys, settings, sources),
        batch_request(keys, settings),
        seed=settings.seed,
        first=first,
        num_workers=settings.num_workers,
        cache_size=settings.cache_size,
        stride=stride,
        times=times,
    )


def next_batches(batches: Iterator[gp.Batch], count: int, stop: bool) -> list[gp.Batch]:
    """The batches of the next step; [] if the signal that stops the training also ended the workers."""
    try:
        return [next(batches) for _ in range(count)]
    except InternalError:
        if stop:
            return []
        raise


@contextmanager
def gpu_stream(
    keys: Keys,
    settings: TrainingSettings,
    sources: Sequence[Source],
    *,
    first: int,
    stride: int,
    device: torch.device,
    times: NodeTimes | None = None,
) -> Iterator[Iterator[Patch]]:
    """Patches first, first + stride, ... on the device.

    times: collects the time for drawing and making a patch, on the host. Raises ConfigError for what only gunpowder
    supports.
    """
    if device.type == "cuda" and device.index is None:  # a new thread does not have the current device of this one
        device = torch.device("cuda", torch.cuda.current_device())
    # on a GPU patches have a stream of their own, before that of the training: only the training's stream waits
    side: Any = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    drawer = Drawer(training_pipeline(keys, settings, sources), keys, batch_request(keys, settings))
    times = times or NodeTimes()
    with _on(side):
        volumes = device_volumes(drawer.arrays, device)

    def read(number: int) -> tuple[Drawn, Crops]:
        """Draw a batch, and read what is not on the device."""
        began = perf_counter()
        drawn = drawer.draw(batch_seed(settings.seed, number))
        crops = volumes[drawn.volume].read(drawn.boxes)
        times.seconds["draw and read", ""] += perf_counter() - began
        return drawn, crops

    def make(found: Iterator[tuple[Drawn, Crops]]) -> tuple[Patch, Any]:
        """Make the next patch; return it with the CUDA event after which it is ready (None on a CPU)."""
        drawn, crops = next(found)
        began = perf_counter()
        with _on(side):
            patch = make_patch(drawn, volumes[drawn.volume].crops(drawn.boxes, crops), settings)
            event = None if side is None else side.record_event()
        times.seconds["make", ""] += perf_counter() - began
        times.batches += 1
        return patch, event

    numbers = itertools.count(first, stride)
    readers = 1 if all(volume.kept for volume in volumes) else max(1, settings.num_workers)
    with ExitStack() as ending:
        found = _ahead(read, numbers, readers, readers + 1, ending)
        made = _ahead(make, itertools.repeat(found), 1, PATCHES_AHEAD, ending)
        yield (_received(patch, event, device) for patch, event in made)


def _ahead(work: Callable[[A], B], arguments: Iterable[A], threads: int, count: int, ending: ExitStack) -> Iterator[B]:
    """The results in the order of the arguments, of which there is no end; `count` of them ahead."""
    pool = ThreadPoolExecutor(threads, "patches")
    ending.callback(pool.shutdown, cancel_futures=True)
    waiting = deque(pool.submit(work, argument) for argument in itertools.islice(arguments, count))
    for argument in arguments:
        result = waiting.popleft().result()
        waiting.append(pool.submit(work, argument))
        yield result


def _received(patch: Patch, event: Any, device: torch.device) -> Patch:
    """The patch, for which the current stream waits; the host does not."""
    if event is not None:
        here = torch.cuda.current_stream(device)
        here.wait_event(event)
        for tensor in patch.tensors():
            tensor.record_stream(here)
    return patch


def _on(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
