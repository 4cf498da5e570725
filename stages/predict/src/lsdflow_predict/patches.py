"""From raw to grey levels of a box: the tiles that touch it are evaluated and put together.

One pass (LSDs in memory) and two passes (LSDs stored) differ only in where `lsds` of the affinity network come from:
both get the grey levels of the same LSD tiles, so both give the same bits. Windows and tiles are tensors that lie where
they were put: on the GPU, where it has room for the LSDs of a block, bytes go there once and come back once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lsdflow_contract.arrays import LSDS
from lsdflow_contract.geometry import Box
from lsdflow_predict.networks import U8, Network, grey_levels
from lsdflow_predict.tiles import Index3, Tiling, assemble, crop_to_cell, hull

ReadBox = Callable[[Box], Tensor]


@dataclass(frozen=True)
class Window:
    """A tensor u8 (..., z, y, x) and the box it covers."""

    box: Box
    values: Tensor

    def crop(self, box: Box) -> Tensor:
        """The part of `box`, which must lie inside."""
        return self.values[(..., *box.slices(self.box.begin_vox))]


@dataclass
class TileCache:
    """The tiles used last, up to `capacity_bytes`. What is kept changes no value, only how often tiles are computed."""

    capacity_bytes: int
    _tiles: OrderedDict[Index3, Tensor] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def __contains__(self, index: Index3) -> bool:
        return index in self._tiles

    def get(self, index: Index3, compute: Callable[[Index3], Tensor]) -> Tensor:
        """The tile, computed if it is not kept."""
        if index in self._tiles:
            self._tiles.move_to_end(index)
            return self._tiles[index]
        tile = compute(index)
        self._tiles[index] = tile
        self._bytes += tile.nbytes
        while self._bytes > self.capacity_bytes:
            self._bytes -= self._tiles.popitem(last=False)[1].nbytes
        return tile


@dataclass(frozen=True)
class LsdSource:
    """LSDs computed from raw, tile by tile; kept on `device`."""

    tiling: Tiling
    network: Network
    raw: ReadBox
    cache: TileCache
    device: str = "cpu"

    def read(self, box: Box) -> Tensor:
        """LSDs (10, *box.shape) u8."""
        missing = [i for i in self.tiling.indices_touching(box) if i not in self.cache]
        raw = _raw_of(self.tiling, missing, self.raw)

        def compute(index: Index3) -> Tensor:
            wanted = self.tiling.input(index)
            inside = raw is not None and raw.box.contains(wanted)
            patch = raw.crop(wanted) if raw is not None and inside else self.raw(wanted)
            output = grey_levels(self.network, patch, None, ("lsds",), self.tiling.output(index))
            return crop_to_cell(self.tiling, output).to(self.device).contiguous()

        result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=self.device)
        return assemble(self.tiling, box, result, lambda index: self.cache.get(index, compute))


def wanted_tiles(tiling: Tiling, box: Box, mask: U8 | None) -> list[Index3]:
    """Tiles touching `box` that own a voxel inside the mask (z, y, x over the box); all of them without a mask."""
    indices = tiling.indices_touching(box)
    if mask is None:
        return list(indices)
    return [i for i in indices if mask[tiling.cell(i).intersect(box).slices(box.begin_vox)].any()]


def predict_box(
    tiling: Tiling,
    box: Box,
    wanted: Sequence[Index3],
    *,
    network: Network,
    outputs: dict[str, int],
    raw: Window,
    lsds: Window | None,
) -> dict[str, U8]:
    """Outputs (name -> channels) of `network` in `box`, as name -> (channels, *box.shape) grey levels.

    wanted: the tiles to evaluate, all others are 0. raw, lsds: windows that hold the inputs of the wanted tiles;
    lsds only for a network that takes them.
    """
    needed = set(wanted)

    def evaluate(index: Index3) -> Tensor | None:
        if index not in needed:
            return None
        inside = tiling.input(index)
        seen = None if lsds is None else lsds.crop(inside)
        return crop_to_cell(tiling, grey_levels(network, raw.crop(inside), seen, list(outputs), tiling.output(index)))

    result = torch.zeros((sum(outputs.values()), *box.shape_vox), dtype=torch.uint8, device=raw.values.device)
    return _split(assemble(tiling, box, result, evaluate).cpu().numpy(), outputs)


def paste(window: Window | None, box: Box) -> U8:
    """LSDs (10, *box.shape) of a window where it covers the box, 0 elsewhere."""
    result = np.zeros((LSDS.channels, *box.shape_vox), np.uint8)
    if window is not None:
        shared = window.box.intersect(box)
        result[(slice(None), *shared.slices(box.begin_vox))] = window.crop(shared).cpu().numpy()
    return result


def masked(values: U8, mask: U8 | None) -> U8:
    """(channels, z, y, x) with 0 where the mask (z, y, x) is 0; unchanged without a mask."""
    return values if mask is None else np.where(mask[None] > 0, values, np.uint8(0))


def _raw_of(tiling: Tiling, indices: Sequence[Index3], read: ReadBox) -> Window | None:
    """Raw for the inputs of all `indices`, read at once."""
    if not indices:
        return None
    box = hull(tiling.input(index) for index in indices)
    return Window(box, read(box))


def _split(values: U8, outputs: dict[str, int]) -> dict[str, U8]:
    parts: dict[str, U8] = {}
    begin = 0
    for name, channels in outputs.items():
        parts[name] = values[begin : begin + channels]
        begin += channels
    return parts
