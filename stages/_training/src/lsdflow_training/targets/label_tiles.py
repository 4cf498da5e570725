"""Labels of volumes as pairs of a tile and a label in it, to process many labels and places at once (torch).

    output ->  +------+------+------+     tile: a box of the output; the same shape everywhere
               |      | 7  8 | 8    |     window: a tile and the context that its voxels need
               +------+------+------+     pairs: (tile 1, label 7), (tile 1, label 8), (tile 2, label 8)

Tiles are on the grid of the (downsampled) labels. Voxels outside the volume count as label 0, which has no pairs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_contract.geometry import Box, Vox3

SMALLEST_TILE = 8
TILE_PER_RADIUS = 0.75  # fastest for labels of FIB-25; 0.5 to 1 is nearly as fast


class Tiling(NamedTuple):
    """How the output is cut into tiles on the grid of every `step`-th voxel; begin of the output there; all z, y, x."""

    step: int
    begin: Vox3
    tile: Vox3
    tiles: Vox3
    radius: Vox3

    @property
    def window(self) -> Vox3:
        """Shape of a tile and its context."""
        return _three([t + 2 * r for t, r in zip(self.tile, self.radius, strict=True)])


class Pairs(NamedTuple):
    """Volume in the batch and tile (n, 4), and index of the label (n,), counted from 1."""

    tile: Tensor
    label: Tensor


def tiling(roi: Box, radius: Vox3, step: int) -> Tiling:
    """Tiles of `roi` with a context of `radius` on the grid of every `step`-th voxel; step divides begin and shape."""
    extents = [n // step for n in roi.shape_vox]
    goals = [max(SMALLEST_TILE, TILE_PER_RADIUS * r) for r in radius]
    tile = [-(-n // max(1, round(n / goal))) for n, goal in zip(extents, goals, strict=True)]
    return Tiling(
        step=step,
        begin=_three([b // step for b in roi.begin_vox]),
        tile=_three(tile),
        tiles=_three([-(-n // t) for n, t in zip(extents, tile, strict=True)]),
        radius=radius,
    )


def own_tiles(wanted: Tensor, ids: Tensor, cut: Tiling) -> Tensor:
    """Index of the label of each output voxel (b, z, y, x), by tile, at full resolution.

    (b, tiles z, y, x, voxels z, y, x) int32: position in the sorted `ids`, from 1; 0 for other labels.
    """
    whole = [t * c * cut.step for t, c in zip(cut.tile, cut.tiles, strict=True)]
    index = _padded(_index_of(wanted, ids), [(0, w - n) for w, n in zip(whole, wanted.shape[1:], strict=True)])
    size = _three([t * cut.step for t in cut.tile])
    return _boxes(index, size, size)


def windows(volumes: Tensor, ids: Tensor, cut: Tiling) -> Tensor:
    """The same for `volumes` (b, z, y, x) with context: the window of each tile, every `step`-th voxel."""
    coarse = volumes[:, :: cut.step, :: cut.step, :: cut.step]
    slices, missing = [], []
    for axis, room in enumerate(coarse.shape[1:]):
        low = cut.begin[axis] - cut.radius[axis]
        high = low + cut.tiles[axis] * cut.tile[axis] + 2 * cut.radius[axis]
        slices.append(slice(max(0, low), min(room, high)))
        missing.append((max(0, -low), max(0, high - room)))
    index = _padded(_index_of(coarse[(slice(None), *slices)], ids), missing)
    return _boxes(index, cut.window, cut.tile)


def pairs_of(own: Tensor, labels: int) -> Pairs:
    """All pairs of a tile and a label in it; `own` (b, tiles z, y, x, voxels z, y, x)."""
    tiles = own.shape[:4]
    number = torch.arange(math.prod(tiles), device=own.device).view(*tiles, 1, 1, 1)
    key = torch.unique(number * (labels + 1) + own)
    label = key % (labels + 1)
    key, label = key[label > 0], label[label > 0]
    tile = torch.stack(torch.unravel_index(key // (labels + 1), tiles), dim=1)
    return Pairs(tile, label.to(own.dtype))


def mask_of(tiles: Tensor, pairs: Pairs) -> Tensor:
    """Mask of each pair's label in its tile, (n, z, y, x)."""
    b, z, y, x = pairs.tile.unbind(1)
    return tiles[b, z, y, x] == pairs.label[:, None, None, None]


def _index_of(labels: Tensor, ids: Tensor) -> Tensor:
    """Position of each label in the sorted `ids`, from 1, int32; 0 for labels not in `ids`."""
    place = torch.searchsorted(ids, labels.contiguous(), out_int32=True).clamp_(max=ids.numel() - 1)
    return torch.where(ids[place] == labels, place + 1, 0)


def _padded(index: Tensor, missing: list[tuple[int, int]]) -> Tensor:
    return functional.pad(index, [n for pair in reversed(missing) for n in pair])


def _boxes(index: Tensor, size: Vox3, apart: Vox3) -> Tensor:
    """View (b, boxes z, y, x, size z, y, x) of a volume (b, z, y, x): boxes that begin every `apart` voxels."""
    for axis in range(3):
        index = index.unfold(axis + 1, size[axis], apart[axis])
    return index


def _three(values: list[int]) -> Vox3:
    z, y, x = values
    return z, y, x
