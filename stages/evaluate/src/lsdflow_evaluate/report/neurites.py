"""The largest segments in 3-D: a box of labels seen along its shortest axis, what is near brighter than what is far.

Of a volume that is too large to be read for a picture, only the box in its middle is drawn.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report.data import AXES, Neurites, Picture
from lsdflow_evaluate.report.figures import colours_of_ids
from lsdflow_evaluate.report.to_label import box_around, middle_of
from lsdflow_runtime.io.volumes import Volume

MOST_NEURITES = 10
# A box of so many voxels along each axis is read in a few seconds.
MOST_EDGE_VOX = 512
LATTICE_POINTS = 300
DARKEST = 0.25


def largest_neurites(segmentation: Volume) -> Neurites | None:
    """The ten largest segments of a volume, or of the box in its middle; None if there is no label."""
    whole, voxel_nm = segmentation.box, segmentation.geometry.voxel_size_nm
    box = box_around(middle_of(whole), (MOST_EDGE_VOX,) * 3, whole)
    spacing_nm = max(max(n * v for n, v in zip(box.shape_vox, voxel_nm, strict=True)) / LATTICE_POINTS, *voxel_nm)
    step = cast(Vox3, tuple(max(1, math.ceil(spacing_nm / v - 1e-9)) for v in voxel_nm))
    labels = strided(segmentation.read, segmentation.chunk_shape_vox, box, step)
    ids, counts = np.unique(labels, return_counts=True)
    largest = np.lexsort((ids, -counts))[: MOST_NEURITES + 1]
    kept = [int(n) for n in largest if ids[n] > 0][:MOST_NEURITES]
    if not kept:
        return None
    sizes_nm = cast(Nm3, tuple(s * v for s, v in zip(step, voxel_nm, strict=True)))
    return Neurites(
        picture=front_view(labels, ids[kept], sizes_nm),
        ids=tuple(int(label) for label in ids[kept]),
        volumes_nm3=tuple(int(n) * math.prod(sizes_nm) for n in counts[kept]),
        part="" if box == whole else str(box),
    )


def front_view(labels: NDArray[np.uint64], ids: NDArray[np.uint64], spacing_nm: Nm3) -> Picture:
    """The labels `ids` as they are seen along the axis on which the lattice is shortest, lit from the upper left."""
    depth_axis = int(np.argmin([n * s for n, s in zip(labels.shape, spacing_nm, strict=True)]))
    kept = np.moveaxis(np.where(np.isin(labels, ids), labels, 0), depth_axis, 0)
    nearest = (kept > 0).argmax(axis=0)
    front = np.take_along_axis(kept, nearest[None], axis=0)[0]
    down, across = np.gradient(ndimage.gaussian_filter(nearest.astype(np.float64), 1.0))
    light = np.clip(1 + 0.25 * (down + across) / np.sqrt(1 + down**2 + across**2), 0, 1)
    bright = light * (1 - (1 - DARKEST) * nearest / len(kept))
    rgb = colours_of_ids(front) * bright[..., None]
    image = np.dstack([rgb, np.where(front > 0, 255, 0)]).round().astype(np.uint8)
    row_nm, column_nm = (s for axis, s in enumerate(spacing_nm) if axis != depth_axis)
    return Picture("segmentation", "colour", AXES[depth_axis], 0, image, (row_nm, column_nm))
