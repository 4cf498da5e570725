"""One worker's open inputs: volumes and networks, opened once, and the function that predicts a block with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from lsdflow_contract.geometry import Box
from lsdflow_network.inference import load_predictor
from lsdflow_predict.checkpoints import BundleAt
from lsdflow_predict.device_memory import window_device
from lsdflow_predict.devices import choose_device
from lsdflow_predict.job import Job, open_mask, open_raw
from lsdflow_predict.memory_needed import window_bytes
from lsdflow_predict.networks import U8, Network, prepare_torch
from lsdflow_predict.patches import (
    LsdSource,
    ReadBox,
    TileCache,
    Window,
    masked,
    paste,
    predict_box,
    wanted_tiles,
)
from lsdflow_predict.scheme import Layer
from lsdflow_predict.tiles import hull
from lsdflow_predict.work import lsd_task
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.engine.daisy_runner import worker_number
from lsdflow_runtime.io.volumes import Volume

_MB = 1_000_000


@dataclass(frozen=True)
class AffinityBlocks:
    """The block function of affinities (and of LSDs that are stored beside them)."""

    layer: Layer
    network: Network
    outputs: dict[str, int]
    raw: ReadBox
    lsds: ReadBox | None
    mask: Volume | None

    def __call__(self, block: Block) -> BlockOutput:
        """Grey levels of the write box; 0 outside the mask."""
        box, tiling = block.write, self.layer.tiling
        mask = None if self.mask is None else self.mask.read(box, outside="zero")
        wanted = wanted_tiles(tiling, box, mask)
        arrays = {name: np.zeros((channels, *box.shape_vox), np.uint8) for name, channels in self.outputs.items()}
        if wanted:
            inputs = hull(tiling.input(index) for index in wanted)
            raw = Window(inputs, self.raw(inputs))
            lsds = None if self.lsds is None else Window(inputs, self.lsds(inputs))
            own = self.outputs if lsds is None else {"affs": self.outputs["affs"]}
            arrays = predict_box(tiling, box, wanted, network=self.network, outputs=own, raw=raw, lsds=lsds)
            if lsds is not None and "lsds" in self.outputs:
                arrays["lsds"] = paste(lsds, box)
        facts = {"blocks_outside_mask": int(not wanted), "tiles": len(wanted)}
        return BlockOutput(arrays={name: masked(values, mask) for name, values in arrays.items()}, facts=facts)


@dataclass(frozen=True)
class LsdBlocks:
    """The block function of the first of two passes: LSDs that some affinity tile inside the mask sees."""

    source: LsdSource
    affinities: Layer
    mask: Volume | None

    def __call__(self, block: Block) -> BlockOutput:
        """LSDs of the write box, 0 where no affinity tile needs any."""
        if not self._is_needed(block.write):
            return BlockOutput(arrays={"lsds": paste(None, block.write)}, facts={"blocks_outside_mask": 1})
        return BlockOutput(
            arrays={"lsds": self.source.read(block.write).cpu().numpy()}, facts={"blocks_outside_mask": 0}
        )

    def _is_needed(self, box: Box) -> bool:
        """A tile whose input meets the box owns voxels at most one input shape away from it."""
        if self.mask is None:
            return True
        near = box.grow(self.affinities.tiling.input_vox).intersect(self.affinities.region)
        return bool(self.mask.read(near, outside="zero").any())


@contextmanager
def open_affinities(job: Job) -> Iterator[BlockFunction]:
    """Load the network(s) and open the volumes of the affinity pass."""
    device = _prepare(job)
    place = window_device(device, window_bytes(job.scheme, job.scheme.affinities))
    raw = raw_reader(job, place)
    lsds: ReadBox | None = None
    if job.stores_lsds_first:
        stored = lsd_task(job).outputs["lsds"].open()
        lsds = _reader(stored.read, place)
    elif job.scheme.lsds is not None:
        lsds = lsd_source(job, raw, device, place).read
    network = load(job, job.networks.affinities, device)
    mask = open_mask(job.experiment, job.config, job.raw)
    yield AffinityBlocks(job.scheme.affinities, network, job.outputs, raw, lsds, mask)


@contextmanager
def open_lsds(job: Job) -> Iterator[BlockFunction]:
    """Load the LSD network and open the volumes of the first of two passes."""
    device = _prepare(job)
    place = window_device(device, window_bytes(job.scheme, cast(Layer, job.scheme.lsds)))
    source = lsd_source(job, raw_reader(job, place), device, place)
    yield LsdBlocks(source, job.scheme.affinities, open_mask(job.experiment, job.config, job.raw))


def lsd_source(job: Job, raw: ReadBox, device: str, place: str) -> LsdSource:
    """LSDs computed from raw on `device` and kept on `place`. The job must have an LSD network."""
    layer, bundle = cast(Layer, job.scheme.lsds), cast(BundleAt, job.networks.lsds)
    return LsdSource(layer.tiling, load(job, bundle, device), raw, TileCache(job.config.lsd_cache_mb * _MB), place)


def load(job: Job, found: BundleAt, device: str) -> Network:
    """A network on its device. BadData if its weights are damaged."""
    predictor = load_predictor(found.folder, device=device, precision=job.config.precision)
    return predictor.grey_levels


def raw_reader(job: Job, place: str) -> ReadBox:
    """Reads raw of any box, as configured beyond the target's edge, and puts it on a device."""
    raw = open_raw(job.experiment)
    return _reader(lambda box: raw.read(box, outside=job.config.outside), place)


def _reader(read: Callable[[Box], U8], place: str) -> ReadBox:
    return lambda box: torch.from_numpy(np.require(read(box), requirements=("C", "W"))).to(place)


def _prepare(job: Job) -> str:
    prepare_torch(job.experiment.compute.threads_per_worker)
    return choose_device(job.experiment.compute.device, worker_number())
