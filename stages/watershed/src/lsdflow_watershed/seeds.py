"""Where fragments start: local maxima of the distance to the boundary.

A voxel is a maximum when nothing within the window around it is deeper. The window has
`min_seed_distance_vox` voxels per axis (an even window reaches one voxel further down than up, as
in the published chain). Face-connected maxima of one plateau make one seed.
"""

from __future__ import annotations

import cc3d
import numpy as np
from numpy.typing import NDArray

from lsdflow_watershed.window_maximum import window_maximum


def label_seeds(distance_squared: NDArray[np.int32], min_seed_distance_vox: int, in_xy: bool) -> NDArray[np.uint32]:
    """Number the seeds 1, 2, ...; 0 elsewhere.

    Regions of distance 0 that are wider than the window are maxima too and get seeds, as published:
    a fragment there is removed by the mask or by `filter_fragments`, not here.

    :param distance_squared: (z, y, x); :func:`lsdflow_watershed.distance.squared_distance`.
    :param in_xy: seeds of one section are not connected to those of the next.
    """
    window = min_seed_distance_vox
    size = (1, window, window) if in_xy else (window, window, window)
    maxima = window_maximum(distance_squared, size) == distance_squared
    marked = maxima.astype(np.uint8)
    if in_xy:
        # components join equal values only: alternate them, and sections stay apart
        marked[1::2] *= 2
    return cc3d.connected_components(marked, connectivity=6, out_dtype=np.uint32).astype(np.uint32, copy=False)
