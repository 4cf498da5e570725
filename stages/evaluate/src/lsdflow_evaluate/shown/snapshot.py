"""The 3-D snapshot of the report: the segmentation read on a lattice, at bounded cost, and its ten largest neurites.

Of a volume that is too large to be read for a picture, the box in its middle is shown; the report says so.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report.data import Snapshot
from lsdflow_evaluate.report.figures import colours_of_ids
from lsdflow_evaluate.shown.neurites import Neurites, largest_labels, picture_of_neurites, view_from
from lsdflow_runtime.io.volumes import Volume

MOST_NEURITES = 10
# A box of 512 voxels along each axis is read in a few seconds.
MOST_VOXELS = 512**3
LATTICE_POINTS = 200


def snapshot_of(segmentation: Volume) -> Snapshot | None:
    """The ten largest neurites of the segmentation, or of the box in its middle; None if there is no label there."""
    box = readable_box(segmentation.box, MOST_VOXELS)
    voxel_nm = segmentation.geometry.voxel_size_nm
    step = lattice_step(box.shape_vox, voxel_nm, LATTICE_POINTS)
    labels = strided(segmentation.read, segmentation.chunk_shape_vox, box, step).astype(np.uint64)
    ids = largest_labels(labels, MOST_NEURITES)
    if not ids:
        return None
    spacing = cast(Nm3, tuple(s * v for s, v in zip(step, voxel_nm, strict=True)))
    colours = colours_of_ids(np.array([label for label, _ in ids], np.uint64))
    seen: Neurites = picture_of_neurites(labels, spacing, colours, ids, view_from())
    return Snapshot(
        pixels=seen.pixels,
        ids=seen.ids,
        volumes_nm3=tuple(points * math.prod(spacing) for points in seen.points),
        corners=seen.corners,
        farthest=seen.farthest,
        pixel_nm=seen.pixel_nm,
        box=str(box),
        whole=box == segmentation.box,
    )


def readable_box(box: Box, most_voxels: int) -> Box:
    """The box itself, or the one in its middle with `most_voxels`: the longest axes are cut first."""
    shape = list(box.shape_vox)
    while math.prod(shape) > most_voxels:
        longest = max(range(3), key=lambda axis: shape[axis])
        others = math.prod(n for axis, n in enumerate(shape) if axis != longest)
        second = sorted(shape)[1]
        shape[longest] = max(min(second, shape[longest] - 1), most_voxels // others, 1)
    begin = [b + (n - s) // 2 for b, n, s in zip(box.begin_vox, box.shape_vox, shape, strict=True)]
    return Box(cast(Vox3, tuple(begin)), cast(Vox3, tuple(shape)))


def lattice_step(shape_vox: Vox3, voxel_nm: Nm3, points: int) -> Vox3:
    """Voxels between lattice points, so that points lie alike far apart in nm and at most `points` along an axis."""
    longest_nm = max(n * v for n, v in zip(shape_vox, voxel_nm, strict=True))
    spacing_nm = max(longest_nm / points, *voxel_nm)
    return cast(Vox3, tuple(max(1, math.ceil(spacing_nm / v - 1e-9)) for v in voxel_nm))
