"""Three orthogonal central planes of a volume, cut to what a page can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_evaluate.report.data import Axis, LayerKind, Picture
from lsdflow_evaluate.report.figures import affinities_to_rgb, lsds_to_rgb

AXES: tuple[Axis, ...] = ("z", "y", "x")


@dataclass(frozen=True)
class Plane:
    """A box one voxel thick along `axis`, on the grid of the target."""

    axis: Axis
    index_vox: int
    box: Box


def central_planes(box: Box, edge_vox: int) -> tuple[Plane, ...]:
    """The planes through the middle of `box` across z, y and x, at most `edge_vox` voxels wide and high."""
    middle = [b + n // 2 for b, n in zip(box.begin_vox, box.shape_vox, strict=True)]
    planes = []
    for number, axis in enumerate(AXES):
        begin, shape = [], []
        for other in range(3):
            length = 1 if other == number else min(edge_vox, box.shape_vox[other])
            first = middle[other] if other == number else max(box.begin_vox[other], middle[other] - length // 2)
            begin.append(first)
            shape.append(length)
        planes.append(Plane(axis, middle[number], Box(cast(Vox3, tuple(begin)), cast(Vox3, tuple(shape)))))
    return tuple(planes)


def picture_of(layer: str, values: NDArray[Any], plane: Plane, voxel_size_nm: Nm3) -> Picture:
    """The picture of one layer: `values` ([c,] z, y, x) of the plane's box; LSDs and affinities become colours."""
    number = AXES.index(plane.axis)
    image = np.take(values, 0, axis=values.ndim - 3 + number)
    kind: LayerKind = "grey"
    if layer == "lsds":
        image, kind = lsds_to_rgb(image), "colour"
    elif layer == "affinities":
        image, kind = affinities_to_rgb(image), "colour"
    elif layer not in ("raw", "lsd_error"):
        image, kind = image.astype(np.uint64), "labels"
    row, column = (voxel_size_nm[other] for other in range(3) if other != number)
    return Picture(layer, kind, plane.axis, plane.index_vox, np.ascontiguousarray(image), (row, column))
