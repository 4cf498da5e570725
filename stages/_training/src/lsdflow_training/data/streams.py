"""The batches that a process trains on, in order: their numbers, and what makes them.

With pipeline = "gpu", workers read crops, and the training device makes patches from them:

    workers (processes)      read and draw crops of batch first, first + stride, ...      shared memory
    one thread               crops -> device -> patch, on its own CUDA stream             two patches ahead
    training                 receives them in their order

Batch i does not depend on the worker that makes it: see device_patches.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import mmap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import gunpowder as gp
import numpy as np
import numpy.typing as npt
import torch

from lsdflow_contract.errors import InternalError
from lsdflow_training.data.batches import BatchWorker, batch_seed, batch_stream, plain_errors, seeded
from lsdflow_training.data.device_patches import CropReader, Crops, make_patch
from lsdflow_training.data.patch import DevicePatch
from lsdflow_training.data.pipeline import Keys, batch_request, labels_padding_vox, training_pipeline
from lsdflow_training.data.volumes import Source
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.timing import NodeTimes

ALIGNMENT = 64  # bytes, of arrays in shared memory
PATCHES_AHEAD = 2


@dataclass(frozen=True)
class BatchNumbers:
    """Batches first, first + stride, ... of one process; batch i does not depend on the process that makes it."""

    first: int
    stride: int


def make_stream(
    keys: Keys, settings: TrainingSettings, sources: Sequence[Source], numbers: BatchNumbers, times: NodeTimes
) -> AbstractContextManager[Iterator[gp.Batch]]:
    """An endless iterator over the batches with these numbers; what makes them runs while the context is open.

    With pipeline = "gpu" they are patches on the device, see `gpu_stream`.
    """
    if settings.pipeline == "gpu":
        device = torch.device(settings.device)
        return gpu_stream(
            keys, settings, sources, first=numbers.first, stride=numbers.stride, device=device, times=times
        )
    return batch_stream(
        training_pipeline(keys, settings, sources),
        batch_request(keys, settings),
        seed=settings.seed,
        first=numbers.first,
        num_workers=settings.num_workers,
        cache_size=settings.cache_size,
        stride=numbers.stride,
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


@dataclass(frozen=True)
class Placed:
    """Position of an array in the shared memory."""

    begin: int
    dtype: str
    shape: tuple[int, ...]


class SharedBuffers:
    """`count` buffers of `size` bytes, made before the process forks; a page uses memory only once it is written.

    A worker writes to its own buffers in turn: to one, while `ahead` more wait in its queue and the training still
    copies another one.  So with ahead + 2 buffers none is overwritten too early.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.next = 0
        self.memory = mmap.mmap(-1, count * self.size)

    def write(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Placed] | None:
        """Copy the arrays into the next buffer; None if they do not fit."""
        begin, placed = self.next * self.size, {}
        end = begin + self.size
        self.next = (self.next + 1) % self.count
        for name, array in arrays.items():
            placed[name] = Placed(begin, array.dtype.str, array.shape)
            if begin + array.nbytes > end:
                return None
            self.view(placed[name])[...] = array
            begin += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return placed

    def view(self, placed: Placed) -> npt.NDArray[Any]:
        """A view of the array, valid until the buffer is overwritten."""
        count = math.prod(placed.shape)
        flat = np.frombuffer(self.memory, np.dtype(placed.dtype), count, placed.begin)
        return flat.reshape(placed.shape)


Places = dict[str, Placed]


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
) -> Iterator[Iterator[DevicePatch]]:
    """Patches first, first + stride, ... on the device; num_workers = 0 makes them here, one at each request.

    times: collects the time of each node for reading and drawing. Raises ConfigError for what only gunpowder supports.
    """
    if device.type == "cuda" and device.index is None:  # a new thread does not have the current device of this one
        device = torch.device("cuda", torch.cuda.current_device())
    pipeline, request = training_pipeline(keys, settings, sources), batch_request(keys, settings)
    reader = CropReader(pipeline, keys, request)
    with gp.build(pipeline), ExitStack() as ending:
        if settings.num_workers == 0:
            crops = _timed((_read(reader, settings.seed, n) for n in itertools.count(first, stride)), times)
            yield (make_patch(found, settings, device) for found in crops)
            return
        workers = _start_workers(reader, settings, first, stride, ending)
        crops = _timed((worker.next() for worker in itertools.cycle(workers)), times)
        yield _ahead(crops, settings, device, ending)


@dataclass(frozen=True)
class CropWorker:
    """A process that reads crops into shared memory."""

    buffers: SharedBuffers
    process: BatchWorker

    def next(self) -> Crops:
        """The next crops: views that are valid until the next call."""
        found: tuple[Crops, Places] = self.process.next()
        crops, placed = found
        arrays: dict[str, Any] = {name: self.buffers.view(place) for name, place in placed.items()}
        return dataclasses.replace(crops, **arrays)


def _start_workers(
    reader: CropReader, settings: TrainingSettings, first: int, stride: int, ending: ExitStack
) -> list[CropWorker]:
    count = settings.num_workers
    ahead = max(1, settings.cache_size // count)
    workers = []
    for w in range(count):
        buffers = SharedBuffers(ahead + 2, _buffer_bytes(settings))
        make = partial(_read_and_store, reader, settings.seed, buffers)
        workers.append(CropWorker(buffers, BatchWorker(make, first + w * stride, count * stride, ahead)))
        ending.callback(workers[-1].process.stop)
    return workers


def _read_and_store(reader: CropReader, seed: int, buffers: SharedBuffers, number: int) -> tuple[Crops, Places]:
    """The crops without their arrays, and where those are; crops larger than a buffer go through the pipe."""
    crops = _read(reader, seed, number)
    placed = buffers.write({"raw": crops.raw, "labels": crops.labels, "mask": crops.mask})
    if placed is None:
        return crops, {}
    nothing: npt.NDArray[Any] = np.empty((0, 0, 0), np.uint8)
    return dataclasses.replace(crops, raw=nothing, labels=nothing, mask=nothing), placed


def _read(reader: CropReader, seed: int, number: int) -> Crops:
    with plain_errors(number):
        return reader.read(seeded(reader.request, batch_seed(seed, number)))


def _buffer_bytes(settings: TrainingSettings) -> int:
    """Enough for nearly all crops: raw and labels of a patch after two rotations."""
    padding = labels_padding_vox(settings)
    labels = math.prod(2 * n for n in padding)
    grown = 4 if settings.augmentation.elastic_probability and settings.augmentation.rotation_max_rad else 1
    return grown * math.prod(n + 16 for n in settings.shapes.raw_vox) * 2 + 5 * labels


def _timed(crops: Iterator[Crops], times: NodeTimes | None) -> Iterator[Crops]:
    for found in crops:
        if times is not None:
            times.add(found.times)
        yield found


def _ahead(
    crops: Iterator[Crops], settings: TrainingSettings, device: torch.device, ending: ExitStack
) -> Iterator[DevicePatch]:
    """Patches made by a thread; on a GPU on its own stream, and only the caller's stream waits for it."""
    side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    thread = ThreadPoolExecutor(1, "patches")
    ending.callback(thread.shutdown, cancel_futures=True)

    def make() -> tuple[DevicePatch, Any]:
        """Make the next patch; return it with the CUDA event after which it is ready (None on a CPU)."""
        with nullcontext() if side is None else torch.cuda.stream(side):
            return make_patch(next(crops), settings, device), None if side is None else side.record_event()

    waiting: deque[Future[tuple[DevicePatch, Any]]] = deque(thread.submit(make) for _ in range(PATCHES_AHEAD))
    while True:
        patch, made = waiting.popleft().result()
        waiting.append(thread.submit(make))
        if made is not None:
            here = torch.cuda.current_stream(device)
            here.wait_event(made)
            for tensor in patch.tensors():
                tensor.record_stream(here)
        yield patch
