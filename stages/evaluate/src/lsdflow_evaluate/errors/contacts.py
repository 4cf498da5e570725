"""Where two parts of a split or merge touch: the voxels of the first that are nearest to the second.

    1 1 1 . 2 2       The nearest two voxels of different parts are both on the surface of their part: one step from the
    1 1 * . 2 2       one towards the other would be nearer still. So only surfaces are compared, by a tree of the
    1 1 * 2 2 2       second's; of the first, every voxel with the smallest distance is kept (*).

Distances are of voxel centres and rounded to a thousandth of a nm, so that equal ones are equal wherever a box begins.
A part is where its segment and its truth label both are, inside the region of its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion
from scipy.spatial import cKDTree

from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_evaluate.scores.counting import CountedVolumes, vox3

Mask = NDArray[np.bool_]
Voxels = NDArray[np.int64]
Labels = tuple[NDArray[np.uint64], NDArray[np.uint64]]
# The label of fragments of no segment that is listed; no segment id is so large.
OTHER = np.uint64(2**64 - 1)
FIRST, SECOND = 0, 1


@dataclass(frozen=True, eq=False)
class Contact:
    """Voxels int64 (n, 3) of the first part, all `distance_nm` from the second part, in ascending order."""

    distance_nm: float
    voxels: Voxels


def contact_of(first: Voxels, second: Voxels, voxel_size_nm: Nm3, reach_nm: float = np.inf) -> Contact | None:
    """Where two parts touch, from the voxels int64 (n, 3) of their surfaces; None if none are within `reach_nm`."""
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
    return Contact(smallest, first[near][distances == smallest]) if smallest <= reach_nm else None


def surface(part: Mask) -> Voxels:
    """Voxels int64 (n, 3) of a part with a neighbour (of 6) that is not in it, and those at the edge of the array."""
    return np.argwhere(part & ~binary_erosion(part)).astype(np.int64)


def most_central(voxels: Voxels, center_vox: NDArray[np.float64], voxel_size_nm: Nm3) -> tuple[float, list[int]]:
    """Distance (nm) from `center_vox` and place of the voxel nearest to it; of equals the first in z, y, x."""
    away = np.round(np.linalg.norm((voxels - center_vox) * np.array(voxel_size_nm), axis=1), 3)
    nearest = voxels[away == away.min()]
    return float(away.min()), nearest[np.lexsort(nearest.T[::-1])[0]].tolist()


@dataclass(frozen=True)
class Parts:
    """The parts of splits and merges as labels: reads them from the volumes, a box at a time.

    regions: of each error; cells: uint64 (errors, 4), segment and truth label of the first and the second part;
    fragments, segments: uint64 (n,), the fragments of the segments in `cells`, ascending, and these segments.
    """

    volumes: CountedVolumes
    regions: Sequence[str]
    cells: NDArray[np.uint64]
    fragments: NDArray[np.uint64]
    segments: NDArray[np.uint64]

    @property
    def voxel_size_nm(self) -> Nm3:
        """Of the target."""
        return self.volumes.grid.voxel_size_nm

    def within(self, reach_nm: float) -> Vox3:
        """How many voxels of each axis are within reach."""
        return vox3([int(np.ceil(reach_nm / size)) for size in self.voxel_size_nm])

    def segments_of(self, fragments: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The listed segment of each fragment; 0 stays 0, all else is OTHER."""
        if not len(self.fragments):
            return np.where(fragments == 0, np.uint64(0), OTHER)
        place = np.minimum(np.searchsorted(self.fragments, fragments), len(self.fragments) - 1)
        known = np.where(self.fragments[place] == fragments, self.segments[place], OTHER)
        return np.where(fragments == 0, np.uint64(0), known)

    def read(self, error: int, box: Box) -> Labels:
        """Segments and truth labels of a box inside the region of the error."""
        region = self.volumes.regions[self.regions[error]]
        return self.segments_of(self.volumes.fragments.read(box)), region.truth_in(self.volumes.truth, box)

    def mask(self, error: int, side: int, labels: Labels) -> NDArray[np.bool_]:
        """Where the first or the second part of an error is in what was read."""
        segment, truth = self.cells[error, 2 * side : 2 * side + 2]
        found: NDArray[np.bool_] = (labels[0] == segment) & (labels[1] == truth)
        return found


def contact_inside(parts: Parts, error: int, own: Box, around: Box, labels: Labels, reach_nm: float) -> Contact | None:
    """Where the first part inside the box `own` touches the second; `labels`: what was read in the box `around` it."""
    mask = parts.mask(error, FIRST, labels)
    kept, inside = np.zeros_like(mask), own.slices(around.begin_vox)
    kept[inside] = mask[inside]
    found = contact_of(surface(kept), surface(parts.mask(error, SECOND, labels)), parts.voxel_size_nm, reach_nm)
    return None if found is None else Contact(found.distance_nm, found.voxels + np.array(around.begin_vox))


def surface_in(parts: Parts, error: int, side: int, box: Box) -> NDArray[np.int64]:
    """Voxels int64 (n, 3) of the surface of a part inside a box."""
    return np.asarray(surface(parts.mask(error, side, parts.read(error, box))) + np.array(box.begin_vox), np.int64)


def bounds_of(voxels: NDArray[np.int64]) -> list[int]:
    """First voxel of voxels (n, 3), and the first after them."""
    return [*voxels.min(axis=0).tolist(), *(voxels.max(axis=0) + 1).tolist()]


def box_of(bounds: Sequence[int]) -> Box:
    """The box of the bounds that `bounds_of` gave."""
    return Box.from_bounds(vox3(bounds[:3]), vox3(bounds[3:]))


def gap_nm(one: Box, other: Box, voxel_size_nm: Nm3) -> float:
    """The smallest distance that voxels of two boxes can have."""
    steps = [max(b - (e - 1), 0) for b, e in zip(other.begin_vox, one.end_vox, strict=True)]
    back = [max(b - (e - 1), 0) for b, e in zip(one.begin_vox, other.end_vox, strict=True)]
    return float(np.linalg.norm(np.maximum(steps, back) * np.array(voxel_size_nm)))


def distance_from_nm(box: Box, point: NDArray[np.float64], voxel_size_nm: Nm3) -> float:
    """Distance (nm) of the nearest voxel of a box from a point (3,) in voxels."""
    lower, upper = np.array(box.begin_vox), np.array(box.end_vox) - 1
    outside = np.maximum(np.maximum(lower - point, point - upper), 0.0)
    return float(np.linalg.norm(outside * np.array(voxel_size_nm)))
