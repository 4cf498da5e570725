"""From raw to grey levels of a box: the tiles that touch it are evaluated and put together.

One pass (LSDs in memory) and two passes (LSDs stored) differ only in where `lsds` of the affinity network come from:
both get the grey levels of the same LSD tiles, so both give the same bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lsdflow_contract.geometry import Box
from lsdflow_predict.networks import U8, Network, grey_levels, network_input
from lsdflow_predict.tiles import Index3, Tiling, assemble, crop_to_cell, hull

ReadBox = Callable[[Box], U8]
LSD_CHANNELS = 10


@dataclass(frozen=True)
class Window:
    """An array (..., z, y, x) and the box it covers."""

    box: Box
    values: U8

    def crop(self, box: Box) -> U8:
        """The part of `box`, which must lie inside."""
        return self.values[(..., *box.slices(self.box.begin_vox))]


@dataclass
class TileCache:
    """The tiles used last, up to `capacity_bytes`. What is kept changes no value, only how often tiles are computed."""

    capacity_bytes: int
    _tiles: OrderedDict[Index3, U8] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def __contains__(self, index: Index3) -> bool:
        return index in self._tiles

    def get(self, index: Index3, compute: Callable[[Index3], U8]) -> U8:
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
    """LSDs computed from raw, tile by tile."""

    tiling: Tiling
    network: Network
    raw: ReadBox
    cache: TileCache

    def read(self, box: Box) -> U8:
        """LSDs (10, *box.shape) u8."""
        missing = [i for i in self.tiling.indices_touching(box) if i not in self.cache]
        raw = _raw_of(self.tiling, missing, self.raw)

        def compute(index: Index3) -> U8:
            wanted = self.tiling.input(index)
            inside = raw is not None and raw.box.contains(wanted)
            patch = raw.crop(wanted) if raw is not None and inside else self.raw(wanted)
            output = grey_levels(self.network, network_input(patch, None), ("lsds",), self.tiling.output(index))
            return crop_to_cell(self.tiling, output)

        return assemble(self.tiling, box, LSD_CHANNELS, lambda index: self.cache.get(index, compute))


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

    def evaluate(index: Index3) -> U8 | None:
        if index not in needed:
            return None
        inside = tiling.input(index)
        patch = network_input(raw.crop(inside), None if lsds is None else lsds.crop(inside))
        return crop_to_cell(tiling, grey_levels(network, patch, list(outputs), tiling.output(index)))

    return _split(assemble(tiling, box, sum(outputs.values()), evaluate), outputs)


def paste(window: Window | None, box: Box) -> U8:
    """LSDs (10, *box.shape) of a window where it covers the box, 0 elsewhere."""
    result = np.zeros((LSD_CHANNELS, *box.shape_vox), np.uint8)
    if window is not None:
        shared = window.box.intersect(box)
        result[(slice(None), *shared.slices(box.begin_vox))] = window.crop(shared)
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
