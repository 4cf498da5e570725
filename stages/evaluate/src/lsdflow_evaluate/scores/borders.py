"""Truth without the borders of its neurons.

Truth is drawn with a pen of some voxels, so voxels at a border say little about neurons. A border of n voxels: in the
plane (y, x), where labels differ, the voxels on both sides that are less than n voxels from the change (squares).

    truth      1 1 1 1 2 2 2 2         n = 1      1 1 1 0 0 2 2 2         n = 2      1 1 0 0 0 0 2 2
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Widths of borders that are left out, in voxels of the plane.
BORDERS_VOX = (1, 2, 3)


def without_border(truth: NDArray[np.uint64], border_vox: int) -> NDArray[np.uint64]:
    """Truth u64 (z, y, x) with 0 where another label is within `border_vox` voxels in the plane of z."""
    from scipy.ndimage import maximum_filter  # takes long to load, and not every command needs it

    change = np.zeros(truth.shape, bool)
    for axis in (1, 2):
        before = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
        after = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
        differs = truth[before] != truth[after]
        change[before] |= differs
        change[after] |= differs
    if border_vox > 1:
        change = maximum_filter(change, size=(1, 2 * border_vox - 1, 2 * border_vox - 1), mode="constant")
    return np.where(change, np.uint64(0), truth)
