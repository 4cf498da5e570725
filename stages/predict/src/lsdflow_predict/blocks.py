"""What predict does with one block: the tiles that touch it are evaluated and assembled.

Windows and tiles are tensors. Where the GPU has room for the raw and the LSDs of a block, bytes go there once and come
back once.

torch takes seconds to load: only processes that compute blocks or measure tiles import this module.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lsdflow_contract.arrays import LSDS
from lsdflow_contract.geometry import Box
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.evaluation import Finite, Network, grey_levels, load_network
from lsdflow_predict.inputs import Inputs
from lsdflow_predict.resources import cache_bytes, window_bytes
from lsdflow_predict.tiling import Each, Index3, TiledNetwork, Tiling, assemble, crop_to_cell
from lsdflow_predict.worker_device import U8, Device, Window
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume


def affinity_blocks(
    inputs: Inputs,
    mask: Volume | None,
    *,
    outputs: dict[str, int],
    config: PredictConfig,
    device: str,
    threads: int = 1,
) -> BlockFunction:
    """Load the networks and return the function of a block: its `outputs` (name -> channels), u8, 0 outside the mask.

    The LSDs of an LSD network are computed for each block and stay in memory. Networks are evaluated on the torch
    device `device`; on a CPU so many tiles at a time, each by one of the `threads`.
    """
    affinities, lsds = inputs.affinities, inputs.lsds
    tiling = affinities.grid.tiling
    worker = Device(device, window_bytes(affinities.grid, None if lsds is None else lsds.grid), threads)
    network = load_network(affinities.folder, device, config.precision)
    source = None if lsds is None else _lsd_source(lsds, config, worker)
    computation = AffinityComputation(worker, tiling, network, source, outputs)

    def predict_block(block: Block) -> BlockOutput:
        """Predict the write ROI of a block: u8 arrays (channels, z, y, x) by name, and counts for the manifest."""
        box = block.write
        inside = None if mask is None else mask.read(box, outside="zero")
        tiles = tiles_inside(tiling, box, inside)
        facts = {"blocks_outside_mask": int(not tiles), "tiles": len(tiles)}
        if not tiles:
            zeros = np.zeros((sum(outputs.values()), *box.shape_vox), np.uint8)
            return BlockOutput(arrays=_by_name(zeros, outputs), facts=facts)
        seen = Box.hull(tiling.input(index) for index in tiles)
        raw_box = seen if source is None else source.tiling.inputs_hull(seen)
        raw = worker.window(raw_box, inputs.raw.read(raw_box, outside=config.outside))
        with worker.computing():
            arrived = computation.queued(box, tiles, raw, facts)
        values = arrived()
        if inside is not None:
            values = np.where(inside[None] > 0, values, np.uint8(0))
        return BlockOutput(arrays=_by_name(values, outputs), facts=facts)

    return predict_block


@dataclass(frozen=True)
class AffinityComputation:
    """The affinity network on its tiles, and the `source` of its LSDs if it takes them."""

    worker: Device
    tiling: Tiling
    network: Network
    source: LsdSource | None
    outputs: dict[str, int]

    def queued(self, box: Box, tiles: Sequence[Index3], raw: Window, facts: dict[str, int]) -> Callable[[], U8]:
        """Queue the computation of a block; the function that is returned waits for its grey levels.

        The window on the device ends with this call: its memory serves the next block, which comes after this one.
        """
        finite: list[Finite] = []
        raw, lsds = self.worker.upload(raw), None
        seen = Box.hull(self.tiling.input(index) for index in tiles)
        lsd_tiles = [] if self.source is None else list(self.source.tiling.indices_touching(seen))
        each = self.worker.each_of(len(tiles) + len(lsd_tiles))
        if self.source is not None:
            levels, facts["lsd_tiles"] = self.source.read(seen, raw, finite, each)
            lsds = Window(seen, levels)
        own = self.outputs if lsds is None else {"affs": self.outputs["affs"]}
        levels = predict_box(
            self.tiling, box, tiles, network=self.network, outputs=own, raw=raw, lsds=lsds, finite=finite, each=each
        )
        if lsds is not None and "lsds" in self.outputs:
            levels = torch.cat([levels, _pasted(lsds, box)])
        return self.worker.download(levels, finite)


@dataclass
class TileCache:
    """The tiles used last, up to `capacity_bytes`. The cache changes no value, only how often tiles are computed."""

    capacity_bytes: int
    _tiles: OrderedDict[Index3, tuple[Tensor, Finite]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def get(self, index: Index3, compute: Callable[[Index3], tuple[Tensor, Finite]]) -> tuple[Tensor, Finite]:
        """The tile `index` and whether it is finite, computed if it is not in the cache."""
        with self._changing:
            if index in self._tiles:
                self._tiles.move_to_end(index)
                return self._tiles[index]
        found = compute(index)
        with self._changing:
            if index not in self._tiles:
                self._tiles[index] = found
                self._bytes += found[0].nbytes
            while self._bytes > self.capacity_bytes:
                self._bytes -= self._tiles.popitem(last=False)[1][0].nbytes
        return found


@dataclass(frozen=True)
class LsdSource:
    """LSDs computed from raw, tile by tile; kept on `device`."""

    tiling: Tiling
    network: Network
    cache: TileCache
    device: str = "cpu"

    def read(self, box: Box, raw: Window, finite: list[Finite], each: Each = map) -> tuple[Tensor, int]:
        """LSDs (10, *box.shape) u8, and how many tiles were computed; all tiles of the box are added to `finite`.

        raw: a window that holds the inputs of these tiles.
        """
        computed: list[Index3] = []

        def compute(index: Index3) -> tuple[Tensor, Finite]:
            """The LSDs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns."""
            computed.append(index)
            found: list[Finite] = []
            seen = raw.crop(self.tiling.input(index))
            output = grey_levels(self.network, seen, None, ("lsds",), self.tiling.output(index), found)
            return crop_to_cell(self.tiling, output).to(self.device).contiguous(), found[0]

        def tile(index: Index3) -> Tensor:
            """The LSDs of one tile. Blocks that share a tile which is not finite all fail."""
            values, is_finite = self.cache.get(index, compute)
            finite.append(is_finite)
            return values

        result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=self.device)
        return assemble(self.tiling, box, result, tile, each), len(computed)


def tiles_inside(tiling: Tiling, box: Box, mask: U8 | None) -> list[Index3]:
    """Tiles touching `box` that own a voxel inside the mask (z, y, x over the box); all of them without a mask."""
    indices = tiling.indices_touching(box)
    if mask is None:
        return list(indices)
    return [i for i in indices if mask[tiling.cell(i).intersect(box).slices(box.begin_vox)].any()]


def predict_box(
    tiling: Tiling,
    box: Box,
    tiles: Sequence[Index3],
    *,
    network: Network,
    outputs: dict[str, int],
    raw: Window,
    lsds: Window | None,
    finite: list[Finite],
    each: Each = map,
) -> Tensor:
    """Outputs (name -> channels) of `network` in `box`: grey levels (sum of channels, *box.shape), where raw is.

    tiles: those to evaluate, all others are 0; they are added to `finite`. raw, lsds: windows that hold the inputs of
    these tiles; lsds only for a network that takes them.
    """
    needed = set(tiles)

    def evaluate(index: Index3) -> Tensor | None:
        """The outputs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns; None if not needed."""
        if index not in needed:
            return None
        seen = tiling.input(index)
        seen_lsds = None if lsds is None else lsds.crop(seen)
        levels = grey_levels(network, raw.crop(seen), seen_lsds, list(outputs), tiling.output(index), finite)
        return crop_to_cell(tiling, levels)

    result = torch.zeros((sum(outputs.values()), *box.shape_vox), dtype=torch.uint8, device=raw.values.device)
    return assemble(tiling, box, result, evaluate, each)


def _lsd_source(lsds: TiledNetwork, config: PredictConfig, worker: Device) -> LsdSource:
    network = load_network(lsds.folder, worker.device, config.precision)
    cache = TileCache(cache_bytes(config.lsd_cache_mb, worker.windows))
    return LsdSource(lsds.grid.tiling, network, cache, worker.windows)


def _by_name(values: U8, outputs: dict[str, int]) -> dict[str, U8]:
    """Outputs one after the other (sum of channels, z, y, x) -> name: (channels, z, y, x)."""
    ends = np.cumsum(list(outputs.values()))
    return dict(zip(outputs, np.split(values, ends[:-1]), strict=True))


def _pasted(lsds: Window, box: Box) -> Tensor:
    """LSDs (10, *box.shape) of a window where it covers the box, 0 elsewhere."""
    result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=lsds.values.device)
    shared = lsds.box.intersect(box)
    result[(slice(None), *shared.slices(box.begin_vox))] = lsds.crop(shared)
    return result
