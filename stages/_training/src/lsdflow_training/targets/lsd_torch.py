"""LSD targets in torch, on the device of the labels: the same values as `lsd_cpu`, for a GPU or a whole batch.

The same ten Gaussian-weighted sums as in `label_moments`, but dense, because a GPU is fast at large matrix products:

  1. cut the output into tiles about as large as the radius of the Gaussian; list the pairs (tile, label in the tile)
  2. for each pair, a 0/1 mask of the label in the tile and its context; many pairs at a time, as memory allows
  3. three passes of 1-D convolutions, along x, y, z. Each is one product with a banded matrix that holds the kernel
     once per voxel of the tile, relative to that voxel (so there is no cancellation). It puts the axis it has summed
     over first, and the next axis last: all three passes are plain products without transposition
  4. read the sums at the label's own voxels, turn them into channels

    output ->  +------+------+------+     tile: a box of the output; the same shape everywhere
               |      | 7  8 | 8    |     window: a tile and the context that its voxels need
               +------+------+------+     pairs: (tile 1, label 7), (tile 1, label 8), (tile 2, label 8)

Tiles are on the grid of the (downsampled) labels. Voxels outside the volume count as label 0, which has no pairs.
The cost per pair does not depend on the shape of the label, and there is no loop over labels on the host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_training.targets.label_moments import Doubles, gaussian_weights
from lsdflow_training.targets.lsd import CHANNELS, checked_roi, per_axis, positive
from lsdflow_training.targets.lsd_cpu import FLAT_NM2, ROUNDING_SHARE

SMALLEST_TILE = 8
TILE_PER_RADIUS = 0.75  # fastest for labels of FIB-25; 0.5 to 1 is nearly as fast
ORDERS = tuple(o for o in itertools.product(range(3), repeat=3) if sum(o) <= 2)  # powers of z, y, x in the ten sums
CPU_BYTES, GPU_BYTES = 2**26, 2**30  # for the labels that are processed together; the first suits the caches of CPUs
FLOAT_BYTES = 4
PLACE_BYTES = 4 * 8  # per voxel of the label: pair, z, y, x
NUMBERS = 60  # per voxel of the label during step 4, in addition to three places


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
    key = key[key % (labels + 1) > 0]
    label = key % (labels + 1)
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


class _Grid(NamedTuple):
    """Tiles, and the Gaussian on their grid; all z, y, x."""

    cut: Tiling
    bands: list[Tensor]  # (3, tile, window): kernels g, g d, g d^2 at the place of each voxel of the tile
    sigma_vox: Tensor  # (3, 1)
    flat_vox2: Tensor  # (3, 1)


@torch.no_grad()
def lsd_targets_torch(
    labels: Tensor,
    sigma_nm: float | Nm3,
    voxel_size_nm: Nm3,
    roi: Box | None = None,
    downsample: int = 1,
) -> Tensor:
    """The LSD targets of `roi`, as `lsd_cpu` gives them: (10, z, y, x) in [0, 1], 0 where the label is 0.

    labels: integers (z, y, x), or a batch (b, z, y, x), which gives (b, 10, z, y, x); negative ids are labels too.
    sigma_nm, voxel_size_nm, roi, downsample: see there. The working memory is at most CPU_BYTES or GPU_BYTES, not
    counting the result and about four copies of the labels.

    At full resolution, the results agree with lsd_cpu to 1e-5. When downsampled, the Pearson
    coefficients of a label whose few voxels are all far away can be dominated by rounding in float32 (1e-3 in labels of
    noise); those of real labels agree to 1e-5.

    Computes in full precision: autocast and the TF32 settings are disabled (for the whole process, as torch has it)
    until this returns.

    Raises BadData if labels are not as above, UsageError if roi or the numbers are invalid.
    """
    volumes = _checked_labels(labels)
    sigma, voxel_size = positive(per_axis(sigma_nm), "sigma_nm"), positive(voxel_size_nm, "voxel_size_nm")
    box = checked_roi(roi, volumes.shape[1:], downsample)
    grid = _grid(sigma, voxel_size, box, downsample, labels.device)
    at_once = _pairs_at_once(grid.cut, labels.device)
    out = torch.zeros((len(volumes), CHANNELS, *box.shape_vox), device=labels.device)
    with _full_precision(labels.device):
        _describe(volumes, box, grid, at_once, out)
    return out if labels.ndim == 4 else out[0]


def _describe(volumes: Tensor, roi: Box, grid: _Grid, at_once: int, out: Tensor) -> None:
    """Fill `out` (b, 10, z, y, x), which must contain 0."""
    wanted = volumes[(slice(None), *roi.slices())]
    ids = torch.unique(wanted)
    ids = ids[ids != 0]
    if ids.numel() == 0:
        return
    own, seen = own_tiles(wanted, ids, grid.cut), windows(volumes, ids, grid.cut)
    pairs = pairs_of(own, ids.numel())
    for first in range(0, len(pairs.label), at_once):
        chosen = Pairs(*(column[first : first + at_once] for column in pairs))
        voxels = mask_of(own, chosen).nonzero()
        sums = _sums(mask_of(seen, chosen).to(out.dtype), grid)
        _write(voxels, sums, chosen, grid, out)


@lru_cache(maxsize=8)  # the same for all patches of a training: nothing is copied to the device again
def _grid(sigma_nm: Nm3, voxel_size_nm: Nm3, roi: Box, step: int, device: torch.device) -> _Grid:
    sizes = [size * step for size in voxel_size_nm]
    kernels = [gaussian_weights(s / v) for s, v in zip(sigma_nm, sizes, strict=True)]
    z, y, x = (kernel.shape[1] // 2 for kernel in kernels)
    cut = tiling(roi, (z, y, x), step)
    size = torch.tensor(sizes, dtype=torch.float32, device=device)[:, None]
    return _Grid(
        cut=cut,
        bands=[_band(kernel, tile).to(device, torch.float32) for kernel, tile in zip(kernels, cut.tile, strict=True)],
        sigma_vox=torch.tensor(sigma_nm, dtype=torch.float32, device=device)[:, None] / size,
        flat_vox2=float(FLAT_NM2) / size**2,
    )


def _band(kernel: Doubles, tile: int) -> Tensor:
    """Banded matrices (3, tile, tile + 2 radius): row v holds the kernel (3, 2 radius + 1) from column v on."""
    width = kernel.shape[1]
    band = np.zeros((3, tile, tile + width - 1))
    for voxel in range(tile):
        band[:, voxel, voxel : voxel + width] = kernel
    return torch.from_numpy(band)


def _sums(mask: Tensor, grid: _Grid) -> dict[tuple[int, ...], Tensor]:
    """The ten sums around each voxel of the tiles, (tile z, y, x, n), by the powers of z, y, x."""
    band_z, band_y, band_x = grid.bands
    by_x = _pass(band_x, mask)
    by_y = [_pass(band_y[: 3 - kx], by_x[kx]) for kx in range(3)]
    return {
        (kz, ky, kx): values
        for kx in range(3)
        for ky in range(3 - kx)
        for kz, values in enumerate(_pass(band_z[: 3 - kx - ky], by_y[kx][ky]))
    }


def _pass(band: Tensor, values: Tensor) -> Tensor:
    """Sum over the last axis: bands (k, tile, w) and values (..., w) give (k, tile, ...)."""
    kernels, tile, width = band.shape
    product = torch.mm(band.reshape(kernels * tile, width), values.reshape(-1, width).t())
    return product.view(kernels, tile, *values.shape[:-1])


def _write(voxels: Tensor, sums: dict[tuple[int, ...], Tensor], pairs: Pairs, grid: _Grid, out: Tensor) -> None:
    """Write the channels of `voxels` (v, 4), each an index of a pair and z, y, x in its tile, at full resolution."""
    volume, *first = pairs.tile[voxels[:, 0]].unbind(1)
    fine, coarse, corner = [], [], []
    for axis in range(3):
        fine.append(first[axis] * (grid.cut.tile[axis] * grid.cut.step) + voxels[:, axis + 1])
        coarse.append(voxels[:, axis + 1] // grid.cut.step)
        corner.append(first[axis] * grid.cut.tile[axis] + coarse[axis] + grid.cut.begin[axis])
    moments = {order: sums[order][(*coarse, voxels[:, 0])] for order in ORDERS}
    channels = _channels(moments, torch.stack(corner), grid)
    out[volume, :, fine[0], fine[1], fine[2]] = channels.t()


def _channels(moments: dict[tuple[int, ...], Tensor], corner: Tensor, grid: _Grid) -> Tensor:
    """The ten channels (10, v) from the sums (v,) at voxels whose positions on the grid are `corner` (3, v).

    For the rules for flat or distant labels see `lsd_cpu`.
    """
    share = moments[0, 0, 0]
    empty = share == 0
    share = torch.where(empty, 1, share)
    mean = torch.stack([moments[1, 0, 0], moments[0, 1, 0], moments[0, 0, 1]]) / share
    variance = torch.stack([moments[2, 0, 0], moments[0, 2, 0], moments[0, 0, 2]]) / share - mean**2
    variance = torch.where(variance > float(ROUNDING_SHARE) * mean**2, variance, 0)
    no_less = torch.maximum(variance, grid.flat_vox2)
    pearson = []
    for one, other, order in ((0, 1, (1, 1, 0)), (0, 2, (1, 0, 1)), (1, 2, (0, 1, 1))):
        covariance = moments[order] / share - mean[one] * mean[other]
        correlation = covariance / (no_less[one] * no_less[other]).sqrt()
        flat = (variance[one] == 0) | (variance[other] == 0)
        pearson.append(torch.where(flat, 0, correlation) * 0.5 + 0.5)
    offset = torch.where(empty, -corner.to(mean.dtype), mean) / grid.sigma_vox * 0.5 + 0.5
    return torch.cat([offset, no_less / grid.sigma_vox**2, torch.stack([*pearson, share])]).clamp_(0, 1)


def _pairs_at_once(cut: Tiling, device: torch.device) -> int:
    """How many pairs of tile and label fit into the working memory; at least one."""
    (tz, ty, tx), (wz, wy, wx) = cut.tile, cut.window
    seen, own, sums = wz * wy * wx, tz * ty * tx * cut.step**3, len(ORDERS) * tz * ty * tx
    passes = seen + 3 * wz * wy * tx + 6 * wz * ty * tx + sums
    each = max(
        own * PLACE_BYTES + seen * (4 + 1),  # while the mask is made: index and boolean
        own * PLACE_BYTES + FLOAT_BYTES * passes + seen,
        own * (3 * PLACE_BYTES + NUMBERS * FLOAT_BYTES) + FLOAT_BYTES * sums,
    )
    return max(1, (CPU_BYTES if device.type == "cpu" else GPU_BYTES) // each)


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and float32 products in float32 (TF32 and bf16 would have errors of 1e-3)."""
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.mkldnn.matmul)
    before = [s.fp32_precision for s in settings]
    try:
        for s in settings:
            s.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for s, precision in zip(settings, before, strict=True):
            s.fp32_precision = precision


def _checked_labels(labels: Tensor) -> Tensor:
    """The labels as int64 (b, z, y, x)."""
    if labels.ndim not in (3, 4) or labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise BadData(
            "labels must be a volume of integers, or a batch of them",
            wanted="integers, (z, y, x) or (b, z, y, x)",
            found=f"{labels.dtype} {tuple(labels.shape)}",
        )
    # reinterpreted as int64: only equality matters, and torch supports few operations on uint64
    whole = labels.view(torch.int64) if labels.dtype == torch.uint64 else labels.to(torch.int64)
    return whole if labels.ndim == 4 else whole[None]
