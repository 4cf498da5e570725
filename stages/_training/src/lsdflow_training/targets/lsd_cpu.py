"""LSD targets on a CPU (numba), exactly, in one thread, and each label only where it is present:

  1. list the runs of the labels that occur in the output (label_moments)
  2. for each label, sums of the Gaussian-weighted offsets by three passes of 1-D convolutions (label_moments)
  3. sums to channels, at the label's voxels only: loops over labels, tiles and rows

Channels: 0-2 mean offset z, y, x / sigma * 0.5 + 0.5; 3-5 variance zz, yy, xx / sigma^2; 6-8 Pearson coefficients
zy, zx, yx * 0.5 + 0.5; 9 size, the Gaussian-weighted share of voxels that belong to the label. All clipped to [0, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_training.compiled import compiled
from lsdflow_training.targets.label_moments import (
    FIRST,
    SECOND,
    THIRD,
    TILE,
    Doubles,
    Floats,
    GroupedRuns,
    Ints,
    Labels,
    Rows,
    Runs,
    kernels,
    new_rows,
    present_labels,
    running_sums,
    runs_by_y,
    runs_by_z,
    sum_along_x,
    sum_along_y,
    sum_along_z,
)
from lsdflow_training.targets.lsd import CHANNELS, checked_roi, per_axis, positive

# below this variance (nm^2) an axis counts as flat, so that Pearson coefficients stay finite (as in lsds)
FLAT_NM2 = np.float32(1e-3)
# a variance below this share of the squared mean offset is a rounding error and counts as 0. This cannot happen at full
# resolution, where the voxel itself belongs to its label; with downsampling all of a label may be at one distant place
ROUNDING_SHARE = np.float32(1e-5)


class Grid(NamedTuple):
    """Where output voxels are on the grid of the (downsampled) labels, and the Gaussian on that grid.

    Output voxel v gets the moments around voxel begin + v // step.
    """

    step: int
    begin: Ints
    kernel_z: Floats
    kernel_y: Floats
    sums_x: Doubles
    voxel_size_nm: Floats
    sigma_nm: Floats


def lsd_targets_cpu(
    labels: npt.NDArray[np.unsignedinteger],
    sigma_nm: float | Nm3,
    voxel_size_nm: Nm3,
    roi: Box | None = None,
    downsample: int = 1,
) -> npt.NDArray[np.float32]:
    """See `lsd.local_shape_descriptors`."""
    volume = _checked_labels(labels)
    sigma, voxel_size = positive(per_axis(sigma_nm), "sigma_nm"), positive(voxel_size_nm, "voxel_size_nm")
    box = checked_roi(roi, volume.shape, downsample)
    out = np.zeros((CHANNELS, *box.shape_vox), dtype=np.float32)
    wanted = _plain(volume[box.slices()])
    ids = present_labels(wanted)
    if ids.size == 0:
        return out
    sources = runs_by_y(_plain(volume[::downsample, ::downsample, ::downsample]), ids)
    targets = runs_by_z(wanted, ids, downsample)
    describe(sources, targets, _grid(sigma, voxel_size, box, downsample), out)
    return out


def warm_up() -> None:
    """Compile everything now (takes seconds), so that forked worker processes inherit the result."""
    lsd_targets_cpu(np.ones((2, 2, 2), dtype=np.uint64), 1.0, (1.0, 1.0, 1.0))


def _grid(sigma_nm: Nm3, voxel_size_nm: Nm3, roi: Box, downsample: int) -> Grid:
    coarse_nm = [size * downsample for size in voxel_size_nm]
    z, y, x = (sigma / size for sigma, size in zip(sigma_nm, coarse_nm, strict=True))
    return Grid(
        step=downsample,
        begin=np.array([begin // downsample for begin in roi.begin_vox], dtype=np.int64),
        kernel_z=kernels(z),
        kernel_y=kernels(y),
        sums_x=running_sums(x),
        voxel_size_nm=np.array(coarse_nm, dtype=np.float32),
        sigma_nm=np.array(sigma_nm, dtype=np.float32),
    )


def _checked_labels(labels: npt.NDArray[np.unsignedinteger]) -> Labels:
    if labels.ndim != 3 or labels.dtype.kind != "u":
        raise BadData(
            "labels must be a volume of unsigned integers",
            wanted="unsigned, (z, y, x)",
            found=f"{labels.dtype} {labels.shape}",
        )
    return labels.astype(np.uint64, copy=False)


def _plain(labels: Labels) -> Labels:
    """A contiguous and writable array: numba would compile again for other kinds."""
    return np.require(labels, requirements=["C", "W"])


@compiled
def describe(sources: GroupedRuns, targets: GroupedRuns, grid: Grid, out: Floats) -> None:
    """Write the descriptors of all labels into `out` (10, z, y, x), which must contain 0.

    `sources`: runs of the (downsampled) labels with context, by (y, z, x). `targets`: runs of the same labels at full
    resolution in the output, by (z, y, x).
    """
    for label in range(sources.starts.size - 1):
        seen = sources.runs[sources.starts[label] : sources.starts[label + 1]]
        own = targets.runs[targets.starts[label] : targets.starts[label + 1]]
        x_first, x_last = out.shape[3], 0
        for i in range(own.shape[0]):
            x_first = min(x_first, own[i, 2] // grid.step)
            x_last = max(x_last, (own[i, 3] - 1) // grid.step)
        for tile_x in range(x_first, x_last + 1, TILE):
            chosen = _runs_in_tile(own, tile_x, grid.step)
            if chosen.shape[0] > 0:
                _describe_tile(seen, chosen, tile_x, grid, out)


@compiled
def _runs_in_tile(runs: Runs, tile_x: int, step: int) -> Runs:
    """The runs that touch the tile, cut to it."""
    low, high = tile_x * step, (tile_x + TILE) * step
    chosen = np.empty(runs.shape, np.int32)
    count = 0
    for i in range(runs.shape[0]):
        if runs[i, 2] < high and runs[i, 3] > low:
            chosen[count, 0] = runs[i, 0]
            chosen[count, 1] = runs[i, 1]
            chosen[count, 2] = max(runs[i, 2], low)
            chosen[count, 3] = min(runs[i, 3], high)
            count += 1
    return chosen[:count]


@compiled
def _describe_tile(seen: Runs, chosen: Runs, tile_x: int, grid: Grid, out: Floats) -> None:
    """Describe the voxels `chosen` of one label in one tile, given all runs `seen` of the label."""
    bounds = _bounds(chosen, grid)
    height = bounds[1, 1] - bounds[0, 1]
    rows = new_rows(min(seen.shape[0], (bounds[1, 0] - bounds[0, 0]) * height), FIRST)
    starts = sum_along_x(seen, tile_x + grid.begin[2], bounds, grid.sums_x, rows)
    plane = new_rows(height, SECOND)
    window = np.empty((height, 4), np.int64)
    for i in range(height):
        window[i, 0], window[i, 1], window[i, 2], window[i, 3] = starts[i], starts[i], starts[i + 1], bounds[0, 1] + i
    i = 0
    while i < chosen.shape[0]:
        z = chosen[i, 0] // grid.step
        end = i + 1
        while end < chosen.shape[0] and chosen[end, 0] // grid.step == z:
            end += 1
        count = _fill_plane(rows, window, z + grid.begin[0], grid.kernel_z, plane)
        _describe_plane(chosen[i:end], Rows(plane.values, plane.position[:count]), tile_x, grid, out)
        i = end


@compiled
def _bounds(chosen: Runs, grid: Grid) -> Ints:
    """[z, y] of the first row, and of the row after the last, of the labels' grid that the chosen runs depend on."""
    bounds = np.empty((2, 2), np.int64)
    for axis in range(2):
        radius = (grid.kernel_z if axis == 0 else grid.kernel_y).shape[1] // 2
        low, high = chosen[0, axis], chosen[0, axis]
        for i in range(chosen.shape[0]):
            low = min(low, chosen[i, axis])
            high = max(high, chosen[i, axis])
        bounds[0, axis] = low // grid.step + grid.begin[axis] - radius
        bounds[1, axis] = high // grid.step + grid.begin[axis] + radius + 1
    return bounds


@compiled
def _fill_plane(rows: Rows, window: Ints, z: int, kernel: Floats, plane: Rows) -> int:
    """Step 2 for all rows of the plane z; returns how many rows of `plane` are not empty.

    `window` (y, 4): first, and one after the last, of the `rows` of y within reach of z (both advance with z), end of
    the rows of y, and y.
    """
    radius = kernel.shape[1] // 2
    count = 0
    for i in range(window.shape[0]):
        first, last, end = window[i, 0], window[i, 1], window[i, 2]
        while first < end and rows.position[first] < z - radius:
            first += 1
        while last < end and rows.position[last] <= z + radius:
            last += 1
        window[i, 0], window[i, 1] = first, last
        if first < last:
            sum_along_z(rows, (first, last), z, kernel, plane.values[count * SECOND : (count + 1) * SECOND])
            plane.position[count] = window[i, 3]
            count += 1
    return count


@compiled
def _describe_plane(chosen: Runs, plane: Rows, tile_x: int, grid: Grid, out: Floats) -> None:
    """Step 3 for the chosen runs, which are all in one plane of the grid, and their channels."""
    radius = grid.kernel_y.shape[1] // 2
    moments = np.empty(THIRD, np.float32)
    first, last, done = 0, 0, -1
    for i in range(chosen.shape[0]):
        z, y = chosen[i, 0] // grid.step, chosen[i, 1] // grid.step
        if y != done:
            centre = y + grid.begin[1]
            while first < plane.position.size and plane.position[first] < centre - radius:
                first += 1
            while last < plane.position.size and plane.position[last] <= centre + radius:
                last += 1
            sum_along_y(plane, (first, last), centre, grid.kernel_y, moments)
            _to_channels(moments, (z + grid.begin[0], centre, tile_x + grid.begin[2]), grid)
            done = y
        for c in range(10):
            row = out[c, chosen[i, 0], chosen[i, 1]]
            for x in range(chosen[i, 2], chosen[i, 3]):
                row[x] = moments[c * TILE + x // grid.step - tile_x]


@compiled
def _unit(value: np.float32) -> np.float32:
    return min(max(value, np.float32(0)), np.float32(1))


@compiled
def _variance(square: np.float32, mean: np.float32) -> np.float32:
    """Mean square minus squared mean (voxels^2); 0 if the difference is only rounding."""
    variance = square - mean * mean
    return variance if variance > ROUNDING_SHARE * mean * mean else np.float32(0)


@compiled
def _pearson(
    covariance: np.float32, one: np.float32, other: np.float32, flat: tuple[np.float32, np.float32]
) -> np.float32:
    """Correlation of two axes * 0.5 + 0.5 from their variances `one` and `other`, each at least `flat`."""
    if one == 0 or other == 0:
        return np.float32(0.5)
    return _unit(covariance / np.sqrt(max(one, flat[0]) * max(other, flat[1])) * np.float32(0.5) + np.float32(0.5))


@compiled
def _to_channels(m: Floats, corner: tuple[int, int, int], grid: Grid) -> None:
    """Turn the ten moments of a row of a tile (voxels) into the ten channels, in place.

    `corner`: z, y, x of the row's first voxel in the labels' grid.
    """
    half, one = np.float32(0.5), np.float32(1)
    vz, vy, vx = grid.voxel_size_nm[0], grid.voxel_size_nm[1], grid.voxel_size_nm[2]
    # from here on, all lengths are in voxels of their axis
    sz, sy, sx = grid.sigma_nm[0] / vz, grid.sigma_nm[1] / vy, grid.sigma_nm[2] / vx
    flat_z, flat_y, flat_x = FLAT_NM2 / (vz * vz), FLAT_NM2 / (vy * vy), FLAT_NM2 / (vx * vx)
    for i in range(TILE):
        empty = m[i] == 0  # only with downsampling: then lsds uses size 1 and the first voxel of the array as mean
        share = one if empty else m[i]
        per = one / share
        mean_z, mean_y, mean_x = m[i + 3 * TILE] * per, m[i + TILE] * per, m[i + 6 * TILE] * per
        var_z = _variance(m[i + 5 * TILE] * per, mean_z)
        var_y = _variance(m[i + 2 * TILE] * per, mean_y)
        var_x = _variance(m[i + 9 * TILE] * per, mean_x)
        cov_zy = m[i + 4 * TILE] * per - mean_z * mean_y
        cov_zx = m[i + 8 * TILE] * per - mean_z * mean_x
        cov_yx = m[i + 7 * TILE] * per - mean_y * mean_x
        if empty:
            mean_z, mean_y, mean_x = -np.float32(corner[0]), -np.float32(corner[1]), -np.float32(corner[2] + i)
        m[i] = _unit(mean_z / sz * half + half)
        m[i + TILE] = _unit(mean_y / sy * half + half)
        m[i + 2 * TILE] = _unit(mean_x / sx * half + half)
        m[i + 3 * TILE] = _unit(max(var_z, flat_z) / (sz * sz))
        m[i + 4 * TILE] = _unit(max(var_y, flat_y) / (sy * sy))
        m[i + 5 * TILE] = _unit(max(var_x, flat_x) / (sx * sx))
        m[i + 6 * TILE] = _pearson(cov_zy, var_z, var_y, (flat_z, flat_y))
        m[i + 7 * TILE] = _pearson(cov_zx, var_z, var_x, (flat_z, flat_x))
        m[i + 8 * TILE] = _pearson(cov_yx, var_y, var_x, (flat_y, flat_x))
        m[i + 9 * TILE] = _unit(share)
