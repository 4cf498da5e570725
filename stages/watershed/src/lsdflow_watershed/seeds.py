"""The seeds of fragments: local maxima of the distance to the boundary.

A voxel is a maximum if no voxel in the window around it is deeper. The window has `min_seed_distance_vox` voxels per
axis (an even window extends one voxel further down than up, as in the published chain). Face-connected maxima of one
plateau are one seed.

The maximum of a long window is that of two overlapping shorter ones, so a few steps per axis are enough:

    window of 10:    2 = max(1, 1 shifted by 1), 4 = (2, 2 shifted by 2), 8 = (4, 4 by 4), 10 = (8, 8 by 2)

Every step processes whole rows. Windows end at the faces of the volume.
"""

from __future__ import annotations

import cc3d
import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

_TILE = 256


def label_seeds(distance_squared: NDArray[np.int32], min_seed_distance_vox: int, in_xy: bool) -> NDArray[np.uint32]:
    """Number the seeds 1, 2, ...; 0 elsewhere.

    Regions of distance 0 that are wider than the window are also maxima and get seeds, as published. The mask or
    `filter_fragments` removes the fragments there.

    :param distance_squared: (z, y, x); :func:`lsdflow_watershed.distance.squared_distance`.
    :param in_xy: seeds of one section are not connected to those of the next.
    """
    window = min_seed_distance_vox
    size = (1, window, window) if in_xy else (window, window, window)
    maxima = window_maximum(distance_squared, size) == distance_squared
    marked = maxima.astype(np.uint8)
    if in_xy:
        # components join equal values only, so alternating values keep sections separate
        marked[1::2] *= 2
    return cc3d.connected_components(marked, connectivity=6, out_dtype=np.uint32).astype(np.uint32, copy=False)


def window_maximum(values: NDArray[np.int32], size_vox: tuple[int, int, int]) -> NDArray[np.int32]:
    """Maximum over windows of `size_vox`; an even window extends one voxel further down than up.

    Equal to `scipy.ndimage.maximum_filter(values, size_vox)`.

    :param values: (z, y, x), not negative.
    """
    maxima = values.copy()
    _along_rows(maxima.reshape(-1, values.shape[2]), size_vox[2])
    for section in maxima:
        _along_columns(section, size_vox[1])
    _along_columns(maxima.reshape(values.shape[0], -1), size_vox[0])
    return maxima


@compiled
def _along_columns(values: NDArray[np.int32], size: int) -> None:
    """Maxima of windows along the first axis of (n, columns), in place."""
    length, columns = values.shape
    before = size // 2
    buffer = np.zeros((length + size, _TILE), np.int32)
    for first in range(0, columns, _TILE):
        width = min(_TILE, columns - first)
        for q in range(length):
            buffer[before + q, :width] = values[q, first : first + width]
        buffer[before + length :] = 0
        buffer[:before] = 0
        span = 1
        while span < size:
            step = min(span, size - span)
            for q in range(length + before):
                row, ahead = buffer[q], buffer[q + step]
                for column in range(_TILE):
                    row[column] = max(row[column], ahead[column])
            span += step
        for q in range(length):
            values[q, first : first + width] = buffer[q, :width]


@compiled
def _along_rows(values: NDArray[np.int32], size: int) -> None:
    """Maxima of windows along the second axis of (rows, n), in place."""
    length = values.shape[1]
    before = size // 2
    now, then = np.zeros(length + 2 * size, np.int32), np.zeros(length + 2 * size, np.int32)
    for row in range(values.shape[0]):
        now[:before] = 0
        now[before : before + length] = values[row]
        now[before + length :] = 0
        span = 1
        while span < size:
            step = min(span, size - span)
            ahead = now[step:]
            for x in range(length + before):
                then[x] = max(now[x], ahead[x])
            now, then = then, now
            span += step
        values[row] = now[:length]
