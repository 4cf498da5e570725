"""The batches that a process trains on, in order: their numbers, and what makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import gunpowder as gp
import torch

from lsdflow_contract.errors import InternalError
from lsdflow_training.data.batches import batch_stream
from lsdflow_training.data.pipeline import Keys, batch_request, training_pipeline
from lsdflow_training.data.profiling import NodeTimes
from lsdflow_training.data.volumes import Source
from lsdflow_training.gpu.stream import gpu_stream
from lsdflow_training.recipe import Recipe


@dataclass(frozen=True)
class BatchNumbers:
    """Batches first, first + stride, ... of one process; batch i does not depend on the process that makes it."""

    first: int
    stride: int


def make_stream(
    keys: Keys, recipe: Recipe, sources: Sequence[Source], numbers: BatchNumbers, times: NodeTimes
) -> AbstractContextManager[Iterator[gp.Batch]]:
    """An endless iterator over the batches with these numbers; what makes them runs while the context is open.

    With pipeline = "gpu" they are patches on the device, see `gpu_stream`.
    """
    if recipe.pipeline == "gpu":
        device = torch.device(recipe.device)
        return gpu_stream(keys, recipe, sources, first=numbers.first, stride=numbers.stride, device=device, times=times)
    return batch_stream(
        training_pipeline(keys, recipe, sources),
        batch_request(keys, recipe),
        seed=recipe.seed,
        first=numbers.first,
        num_workers=recipe.num_workers,
        cache_size=recipe.cache_size,
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
