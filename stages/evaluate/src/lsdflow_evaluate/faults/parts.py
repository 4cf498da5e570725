"""The parts of faults as they lie in the volumes, and the boxes around them.

A part is where its segment and its truth label both are, inside the region of its fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_evaluate.faults.meeting import Meeting, meeting_of, surface
from lsdflow_evaluate.scores.counting import CountedVolumes

# What a fragment of no guilty segment is called; no id of ours is so large.
OTHER = np.uint64(2**64 - 1)
FIRST, SECOND = 0, 1
Labels = tuple[NDArray[np.uint64], NDArray[np.uint64]]


@dataclass(frozen=True)
class Parts:
    """The faults' parts as labels: reads them from the volumes, a box at a time."""

    volumes: CountedVolumes
    regions: Sequence[str]
    cells: NDArray[np.uint64]
    fragments: NDArray[np.uint64]
    segments: NDArray[np.uint64]

    def voxel_size_nm(self) -> Nm3:
        """Of the target."""
        return self.volumes.grid.voxel_size_nm

    def within(self, reach_nm: float) -> Vox3:
        """How many voxels of each axis lie within reach."""
        return vox3([int(np.ceil(reach_nm / size)) for size in self.voxel_size_nm()])

    def segments_of(self, fragments: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The guilty segment of each fragment; 0 stays 0, all else is OTHER."""
        if not len(self.fragments):
            return np.where(fragments == 0, np.uint64(0), OTHER)
        place = np.minimum(np.searchsorted(self.fragments, fragments), len(self.fragments) - 1)
        known = np.where(self.fragments[place] == fragments, self.segments[place], OTHER)
        return np.where(fragments == 0, np.uint64(0), known)

    def read(self, fault: int, box: Box) -> Labels:
        """Segments and truth labels of a box inside the fault's region."""
        region = self.volumes.regions[self.regions[fault]]
        return self.segments_of(self.volumes.fragments.read(box)), region.truth_in(self.volumes.truth, box)

    def mask(self, fault: int, side: int, labels: Labels) -> NDArray[np.bool_]:
        """Where the first or the second part of a fault lies in what was read."""
        segment, truth = self.cells[fault, 2 * side : 2 * side + 2]
        found: NDArray[np.bool_] = (labels[0] == segment) & (labels[1] == truth)
        return found


def meeting_inside(
    parts: Parts,
    fault: int,
    boxes: tuple[Box, Box],
    labels: Labels,
    reach: float,
) -> Meeting | None:
    """Where the first part inside a box meets the second; boxes: that box, and what was read around it."""
    own, around = boxes
    first = surface(own_voxels(parts.mask(fault, FIRST, labels), own, around))
    met = meeting_of(first, surface(parts.mask(fault, SECOND, labels)), parts.voxel_size_nm(), reach)
    return None if met is None else Meeting(met.distance_nm, met.voxels + np.array(around.begin_vox))


def surface_in(parts: Parts, fault: int, side: int, box: Box) -> NDArray[np.int64]:
    """Voxels int64 (n, 3) of the surface of a part inside a box."""
    return np.asarray(surface(parts.mask(fault, side, parts.read(fault, box))) + np.array(box.begin_vox), np.int64)


def own_voxels(mask: NDArray[np.bool_], own: Box, around: Box) -> NDArray[np.bool_]:
    """The mask of what was read, false outside what is a block's own."""
    kept = np.zeros_like(mask)
    inside = own.slices(around.begin_vox)
    kept[inside] = mask[inside]
    return kept


def bounds_of(voxels: NDArray[np.int64]) -> list[int]:
    """First voxel of voxels (n, 3), and the first after them."""
    return [*voxels.min(axis=0).tolist(), *(voxels.max(axis=0) + 1).tolist()]


def box_of(bounds: Sequence[int]) -> Box:
    """The box of what `bounds_of` told."""
    return Box.from_bounds(vox3(bounds[:3]), vox3(bounds[3:]))


def gap_nm(one: Box, other: Box, voxel_size_nm: Nm3) -> float:
    """The smallest distance that voxels of two boxes can have."""
    steps = [max(b - (e - 1), 0) for b, e in zip(other.begin_vox, one.end_vox, strict=True)]
    back = [max(b - (e - 1), 0) for b, e in zip(one.begin_vox, other.end_vox, strict=True)]
    return float(np.linalg.norm(np.maximum(steps, back) * np.array(voxel_size_nm)))


def distance_from_nm(box: Box, point: tuple[float, float, float], voxel_size_nm: Nm3) -> float:
    """Distance (nm) of the nearest voxel of a box from a point in voxels."""
    lower, upper = np.array(box.begin_vox), np.array(box.end_vox) - 1
    outside = np.maximum(np.maximum(lower - point, np.array(point) - upper), 0.0)
    return float(np.linalg.norm(outside * np.array(voxel_size_nm)))


def vox3(values: Sequence[int]) -> Vox3:
    """Three whole numbers of voxels."""
    z, y, x = (int(v) for v in values)
    return z, y, x
