"""How deep inside a cell a voxel lies: thresholded affinities and their distance transform.

A voxel is *inside* where the mean of its affinities is above one half. The squared Euclidean
distance (in voxels) to the nearest boundary voxel is an integer, so it is kept as one: ties are
exact, and the flood can use one queue per distance instead of a heap.

The threshold is fixed at half of the full scale (255 of u8), as published; nothing here depends on
the content of a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_watershed.distance_transform import squared_distance_transform

FULL_SCALE = 255


def inside_mask(affs: NDArray[np.uint8], in_xy: bool) -> NDArray[np.bool_]:
    """Mark the voxels whose mean affinity is above one half of the full scale.

    :param affs: (3 or more, z, y, x) u8, channels z, y, x; further channels are not used.
    :param in_xy: use the in-plane channels 1 (y) and 2 (x) only.
    :raises BadData: when `affs` has another type or fewer than three channels.
    """
    if affs.ndim != 4 or affs.shape[0] < 3 or affs.dtype != np.uint8:
        raise BadData(
            "these are not affinities",
            wanted="u8 (3, z, y, x)",
            found=f"{affs.dtype} {affs.shape}",
        )
    channels = affs[1:3] if in_xy else affs[:3]
    total = channels.sum(axis=0, dtype=np.uint16)
    inside: NDArray[np.bool_] = 2 * total > FULL_SCALE * channels.shape[0]
    return inside


def squared_distance(inside: NDArray[np.bool_], in_xy: bool) -> NDArray[np.int32]:
    """Squared distance in voxels to the nearest voxel that is not inside; 0 there.

    With `in_xy` every section (z) is on its own. Where there is no boundary at all, no distance is
    defined: every voxel gets 1, which makes the whole volume (section) one plateau.
    The faces of the volume are no boundary.

    :param inside: (z, y, x) bool.
    """
    if not in_xy:
        return _distance_of(inside)
    sections = [_distance_of(section[np.newaxis])[0] for section in inside]
    return np.stack(sections) if sections else np.zeros(inside.shape, np.int32)


def _distance_of(inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    if inside.all():
        return np.ones(inside.shape, np.int32)
    return squared_distance_transform(inside)
