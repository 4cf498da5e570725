"""Where two parts of a volume meet: the voxels of the first that lie nearest to the second.

    1 1 1 . 2 2       The nearest two voxels of different parts both lie on their part's surface: one step from the
    1 1 * . 2 2       one towards the other would be nearer still. So only surfaces are compared, by a tree of the
    1 1 * 2 2 2       second's; of the first, every voxel with the smallest distance is kept (*).

Distances are of voxel centres and rounded to a thousandth of a nm, so that equal ones are equal wherever a box begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion
from scipy.spatial import cKDTree

from lsdflow_contract.geometry import Nm3

Mask = NDArray[np.bool_]
Voxels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Meeting:
    """Voxels int64 (n, 3) of the first part, all `distance_nm` from the second, in ascending order."""

    distance_nm: float
    voxels: Voxels


def meeting(first: Mask, second: Mask, voxel_size_nm: Nm3, reach_nm: float = np.inf) -> Meeting | None:
    """Where two parts (z, y, x) of one box meet; none if no voxels of theirs are within `reach_nm`."""
    return meeting_of(surface(first), surface(second), voxel_size_nm, reach_nm)


def meeting_of(first: Voxels, second: Voxels, voxel_size_nm: Nm3, reach_nm: float = np.inf) -> Meeting | None:
    """The same from the voxels (n, 3) of their surfaces."""
    if not len(first) or not len(second):
        return None
    tree = cKDTree(second * np.array(voxel_size_nm))
    found, nearest = tree.query(first * np.array(voxel_size_nm), distance_upper_bound=reach_nm * (1 + 1e-6))
    near = np.isfinite(found)
    if not near.any():
        return None
    steps = (first[near] - second[nearest[near]]) * np.array(voxel_size_nm)
    distances = np.round(np.sqrt((steps**2).sum(axis=1)), 3)
    smallest = float(distances.min())
    return Meeting(smallest, first[near][distances == smallest]) if smallest <= reach_nm else None


def surface(part: Mask) -> Voxels:
    """Voxels int64 (n, 3) of a part with a neighbour (of 6) that is not in it, and those at the edge of the array."""
    return np.argwhere(part & ~binary_erosion(part)).astype(np.int64)


def most_central(voxels: Voxels, center_vox: NDArray[np.float64], voxel_size_nm: Nm3) -> tuple[float, list[int]]:
    """Distance (nm) from `center_vox` and place of the voxel nearest to it; of equals the first in z, y, x."""
    away = np.round(np.linalg.norm((voxels - center_vox) * np.array(voxel_size_nm), axis=1), 3)
    nearest = voxels[away == away.min()]
    return float(away.min()), nearest[np.lexsort(nearest.T[::-1])[0]].tolist()
