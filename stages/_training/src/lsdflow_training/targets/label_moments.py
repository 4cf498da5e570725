"""Gaussian-weighted moments of each label around each of its voxels: the sums behind the LSD targets (numba).

Labels are runs along x. A run is a stretch of one label in one row (z, y):

    row (z, y):   0 0 7 7 7 0 3 3     ->  label 7: x 2..5    label 3: x 6..8       (half open)

Two orders are needed, because the passes over the axes read the rows in different directions: `runs_by_y` lists the
runs of a label by (y, z, x), `runs_by_z` by (z, y, x). Label 0 has no runs.

For a voxel v of a label, with d = (z, y, x) the offset from v to another voxel of the label and g the truncated
Gaussian, ten sums are needed: of g, g d and g d d'. Because d is counted from v itself there is no cancellation, and
g(d) = g(z) g(y) g(x), so each sum is a chain of three 1-D convolutions with the kernels g, g d and g d^2:

  1. along x, from the runs of the label: the sum over a run is a difference of two entries of a running sum of the
     kernel, whatever the length of the run                                            runs -> 3 values per voxel
  2. along z, only rows that are not empty                                                3 -> 6 values
  3. along y, only for rows in which the label has voxels in the output                   6 -> 10 values

Labels are processed one by one, in tiles of TILE voxels along x: one value of a row of a tile fits a vector register or
two:

        x ->  +--- TILE ---+--- TILE ---+       a row of a tile after step 1: [ g | gd | gdd ] * TILE floats
              | label 7    |     label 7|       only rows with runs within reach of the tile exist;
              +------------+------------+       they are stored by (y, z), so step 2 reads memory without gaps

The inner loops have a constant length and process UNROLL rows at a time, which lets the compiler vectorise them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lsdflow_training.compiled import compiled

Labels = npt.NDArray[np.uint64]
Runs = npt.NDArray[np.int32]  # (n, 4): z, y, first x, one after the last x
Owned = npt.NDArray[np.int32]  # (n, 5): the same, and the index of the label
TILE = 16  # voxels along x
FIRST = 3 * TILE  # floats in a row after step 1
SECOND = 6 * TILE  # after step 2
THIRD = 10 * TILE  # after step 3
UNROLL = 4  # rows at a time


class GroupedRuns(NamedTuple):
    """Runs of several labels; those of label i are runs[starts[i] : starts[i + 1]]."""

    runs: Runs
    starts: npt.NDArray[np.int64]


def present_labels(labels: Labels) -> Labels:
    """The labels of a volume (z, y, x), sorted, without 0."""
    begins = np.empty(labels.shape, dtype=bool)
    begins[..., 0] = True
    np.not_equal(labels[..., 1:], labels[..., :-1], out=begins[..., 1:])
    ids: Labels = np.unique(labels[begins])
    present: Labels = ids[ids != 0]
    return present


@compiled
def runs_by_y(labels: Labels, ids: Labels) -> GroupedRuns:
    """The runs of the labels `ids` (sorted) in `labels` (z, y, x), per label by (y, z, x)."""
    depth, height, width = labels.shape
    found = _new_list(labels)
    count = 0
    for y in range(height):
        for z in range(depth):
            found = _with_room(found, count + width)
            count = _append_row(labels[z, y], (z, y), ids, found, count)
    return _grouped(found, count, ids.size)


@compiled
def runs_by_z(labels: Labels, ids: Labels, step: int) -> GroupedRuns:
    """The same, per label by (z // step, y // step, z, y, x): rows of the same downsampled row are contiguous."""
    depth, height, width = labels.shape
    found = _new_list(labels)
    count = 0
    for coarse_z in range(0, depth, step):
        for coarse_y in range(0, height, step):
            for z in range(coarse_z, min(coarse_z + step, depth)):
                for y in range(coarse_y, min(coarse_y + step, height)):
                    found = _with_room(found, count + width)
                    count = _append_row(labels[z, y], (z, y), ids, found, count)
    return _grouped(found, count, ids.size)


@compiled
def _new_list(labels: Labels) -> Owned:
    depth, height, width = labels.shape
    return np.empty((depth * height * 4 + width, 5), np.int32)


@compiled
def _with_room(found: Owned, needed: int) -> Owned:
    if needed <= found.shape[0]:
        return found
    more = np.empty((2 * needed, 5), np.int32)
    for i in range(found.shape[0]):  # element by element: assigning slices takes seconds to compile
        for k in range(5):
            more[i, k] = found[i, k]
    return more


@compiled
def _append_row(row: Labels, place: tuple[int, int], ids: Labels, found: Owned, count: int) -> int:
    """Append the runs of one row at (z, y) = `place`; returns the new count."""
    begin = 0
    while begin < row.size:
        label = row[begin]
        end = begin + 1
        while end < row.size and row[end] == label:
            end += 1
        owner = _index_of(label, ids) if label != 0 else -1
        if owner >= 0:
            found[count, 0], found[count, 1] = place
            found[count, 2] = begin
            found[count, 3] = end
            found[count, 4] = owner
            count += 1
        begin = end
    return count


@compiled
def _index_of(label: int, ids: Labels) -> int:
    """Position of `label` in the sorted `ids`, or -1 (binary search)."""
    low = 0
    high = ids.size
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low if low < ids.size and ids[low] == label else -1


@compiled
def _grouped(found: Owned, count: int, labels: int) -> GroupedRuns:
    """Counting sort of the first `count` runs by their label; keeps the order within a label."""
    starts = np.zeros(labels + 1, np.int64)
    for i in range(count):
        starts[found[i, 4] + 1] += 1
    for i in range(labels):
        starts[i + 1] += starts[i]
    place = starts[:-1].copy()
    runs = np.empty((count, 4), np.int32)
    for i in range(count):
        to = place[found[i, 4]]
        place[found[i, 4]] = to + 1
        for k in range(4):
            runs[to, k] = found[i, k]
    return GroupedRuns(runs, starts)


Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of a tile that are not empty: their values one after the other (flat), and the position of each.

    `values` is initialised and has room for UNROLL more rows, because steps 2 and 3 read in groups of UNROLL.
    """

    values: Floats
    position: Ints


def kernels(sigma_vox: float, truncate: float = 3.0) -> Floats:
    """The kernels g, g d and g d^2 of one axis, float32 (3, 2 r + 1), d in voxels, r = int(truncate * sigma + 0.5).

    g is scipy's truncated Gaussian: it sums to 1 after truncation.
    """
    return gaussian_weights(sigma_vox, truncate).astype(np.float32)


def running_sums(sigma_vox: float, truncate: float = 3.0) -> Doubles:
    """Running sums of the three kernels for step 1, float64 (3, 2 (r + TILE) + 1), reversed.

    Entry [k, r + TILE - t] is the sum of kernel k over all d < t; constant beyond the kernel.
    """
    weights = gaussian_weights(sigma_vox, truncate)
    padded = np.pad(weights, ((0, 0), (TILE, TILE - 1)))
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(padded, axis=1)], axis=1)
    return np.ascontiguousarray(sums[:, ::-1])


def gaussian_weights(sigma_vox: float, truncate: float = 3.0) -> Doubles:
    """The kernels g, g d and g d^2 in double precision; see `kernels`."""
    radius = int(truncate * sigma_vox + 0.5)
    d = np.arange(-radius, radius + 1, dtype=np.float64)
    gauss = np.exp(-0.5 * (d / sigma_vox) ** 2)
    gauss /= gauss.sum()
    return np.stack([gauss, gauss * d, gauss * d * d])


@compiled
def new_rows(room: int, length: int) -> Rows:
    """Room for `room` rows of `length` floats."""
    return Rows(np.zeros((room + UNROLL) * length, np.float32), np.zeros(room + UNROLL, np.int64))


@compiled
def sum_along_x(runs: Runs, tile_x: int, bounds: Ints, sums: Doubles, rows: Rows) -> Ints:
    """Step 1: fill `rows` from the runs of one label, ordered by (y, z, x); the position of a row is its z.

    `bounds` (2, 2): [z, y] of the first row, and of the row after the last, within reach. Returns where the rows of
    each y start: rows starts[i] : starts[i + 1] have y = bounds[0, 1] + i.
    """
    reach = sums.shape[1] // 2
    starts = np.zeros(bounds[1, 1] - bounds[0, 1] + 1, np.int64)
    row, last_z, last_y = -1, -1, -1
    for i in range(runs.shape[0]):
        z, y = runs[i, 0], runs[i, 1]
        begin = max(runs[i, 2] - tile_x, TILE - reach)
        end = min(runs[i, 3] - tile_x, reach)
        if z < bounds[0, 0] or z >= bounds[1, 0] or y < bounds[0, 1] or y >= bounds[1, 1] or begin >= end:
            continue
        if z != last_z or y != last_y:
            row += 1
            rows.position[row] = z
            starts[y - bounds[0, 1] + 1] += 1
            last_z, last_y = z, y
        _add_run(sums, reach - begin, reach - end, rows.values[row * FIRST : (row + 1) * FIRST])
    for i in range(starts.size - 1):
        starts[i + 1] += starts[i]
    return starts


@compiled
def _add_run(sums: Doubles, at_begin: int, at_end: int, row: Floats) -> None:
    for k in range(3):
        upper = sums[k, at_end : at_end + TILE]
        lower = sums[k, at_begin : at_begin + TILE]
        part = row[k * TILE : (k + 1) * TILE]
        for i in range(TILE):
            part[i] += np.float32(upper[i] - lower[i])


@compiled
def _weights_of(kernel: Floats, rows: Rows, row: int, last: int, centre: int) -> tuple[np.float32, ...]:
    """The three kernels at the offset of a row from `centre`; 0 for rows that only complete a group of UNROLL."""
    if row >= last:
        return np.float32(0), np.float32(0), np.float32(0)
    at = rows.position[row] - centre + kernel.shape[1] // 2
    return kernel[0, at], kernel[1, at], kernel[2, at]


@compiled
def sum_along_z(rows: Rows, span: tuple[int, int], z: int, kernel: Floats, out: Floats) -> None:
    """Step 2: `out` (6 * TILE) at z from the rows `span` of one y: 1, z, zz, x, zx, xx (offsets in voxels)."""
    first, last = span
    out[:] = 0
    for s in range(first, last, UNROLL):
        g0, d0, q0 = _weights_of(kernel, rows, s, last, z)
        g1, d1, q1 = _weights_of(kernel, rows, s + 1, last, z)
        g2, d2, q2 = _weights_of(kernel, rows, s + 2, last, z)
        g3, d3, q3 = _weights_of(kernel, rows, s + 3, last, z)
        r = rows.values[s * FIRST : (s + UNROLL) * FIRST]
        for i in range(TILE):
            a0, a1, a2, a3 = r[i], r[i + FIRST], r[i + 2 * FIRST], r[i + 3 * FIRST]
            out[i] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            out[i + TILE] += d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3
            out[i + 2 * TILE] += q0 * a0 + q1 * a1 + q2 * a2 + q3 * a3
        for i in range(TILE, 2 * TILE):  # x
            a0, a1, a2, a3 = r[i], r[i + FIRST], r[i + 2 * FIRST], r[i + 3 * FIRST]
            out[i + 2 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            out[i + 3 * TILE] += d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3
        for i in range(2 * TILE, 3 * TILE):  # xx
            a0, a1, a2, a3 = r[i], r[i + FIRST], r[i + 2 * FIRST], r[i + 3 * FIRST]
            out[i + 3 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3


@compiled
def sum_along_y(rows: Rows, span: tuple[int, int], y: int, kernel: Floats, out: Floats) -> None:
    """Step 3: `out` (10 * TILE) at y from the rows `span` of step 2: 1, y, yy, z, zy, zz, x, yx, zx, xx (voxels)."""
    first, last = span
    out[:] = 0
    for s in range(first, last, UNROLL):
        g0, d0, q0 = _weights_of(kernel, rows, s, last, y)
        g1, d1, q1 = _weights_of(kernel, rows, s + 1, last, y)
        g2, d2, q2 = _weights_of(kernel, rows, s + 2, last, y)
        g3, d3, q3 = _weights_of(kernel, rows, s + 3, last, y)
        r = rows.values[s * SECOND : (s + UNROLL) * SECOND]
        for i in range(TILE):
            a0, a1, a2, a3 = r[i], r[i + SECOND], r[i + 2 * SECOND], r[i + 3 * SECOND]
            out[i] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            out[i + TILE] += d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3
            out[i + 2 * TILE] += q0 * a0 + q1 * a1 + q2 * a2 + q3 * a3
        for i in range(TILE, 2 * TILE):  # z
            a0, a1, a2, a3 = r[i], r[i + SECOND], r[i + 2 * SECOND], r[i + 3 * SECOND]
            out[i + 2 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            out[i + 3 * TILE] += d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3
        for i in range(2 * TILE, 3 * TILE):  # zz
            a0, a1, a2, a3 = r[i], r[i + SECOND], r[i + 2 * SECOND], r[i + 3 * SECOND]
            out[i + 3 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
        for i in range(3 * TILE, 4 * TILE):  # x
            a0, a1, a2, a3 = r[i], r[i + SECOND], r[i + 2 * SECOND], r[i + 3 * SECOND]
            out[i + 3 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            out[i + 4 * TILE] += d0 * a0 + d1 * a1 + d2 * a2 + d3 * a3
        for i in range(4 * TILE, 6 * TILE):  # zx, xx
            a0, a1, a2, a3 = r[i], r[i + SECOND], r[i + 2 * SECOND], r[i + 3 * SECOND]
            out[i + 4 * TILE] += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
