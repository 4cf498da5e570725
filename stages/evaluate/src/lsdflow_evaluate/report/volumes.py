"""The volumes of an experiment in the report: central planes as pictures, and their places for neuroglancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.shown_volumes import Placed, ShownVolume, shown_volumes
from lsdflow_evaluate.report.data import Axis, LayerKind, Picture
from lsdflow_evaluate.report.figures import three_channels
from lsdflow_runtime.io.volumes import Volume

AXES: tuple[Axis, ...] = ("z", "y", "x")
MAP = "lsd_error"


@dataclass(frozen=True)
class PlaneBox:
    """A box one voxel thick along `axis`, on the grid of the target."""

    axis: Axis
    index_vox: int
    box: Box


def volumes_shown(
    layout: ExperimentLayout, truth_dataset: str, result: Manifest | None = None
) -> tuple[ShownVolume, ...]:
    """All volumes that exist, in the order in which they are made.

    result: the manifest of the scores that are shown, which need not be the current one; its map of LSD errors is
    shown.
    """
    shown = shown_volumes(layout, truth_dataset)
    if result is None:
        return shown
    found = {volume.name: volume for volume in shown if volume.name != MAP}
    if MAP in result.outputs:
        truth = found.pop("truth", None)
        found[MAP] = ShownVolume(MAP, *result.output_array(layout, MAP))
        found |= {"truth": truth} if truth else {}
    return tuple(volume for volume in found.values() if volume.exists)


def shown_box(volumes: dict[str, Volume]) -> Box:
    """The box whose middle the pictures show: that of the last volume of the chain. MissingInput if there is none."""
    for name in ("segmentation", "fragments", "affinities", "raw"):
        if name in volumes:
            return volumes[name].box
    raise MissingInput("there is no volume to show", fix="run prepare first")


def central_planes(box: Box, edge_vox: int) -> tuple[PlaneBox, ...]:
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
        planes.append(PlaneBox(axis, middle[number], Box(cast(Vox3, tuple(begin)), cast(Vox3, tuple(shape)))))
    return tuple(planes)


def pictures(volume: Volume, name: str, box: Box, grid: Geometry, edge_vox: int) -> tuple[Picture, ...]:
    """The three central planes of one volume; 0 outside its own box."""
    planes = central_planes(box, edge_vox)
    return tuple(picture_of(name, volume.read(p.box, outside="zero"), p, grid.voxel_size_nm) for p in planes)


def picture_of(layer: str, values: NDArray[Any], plane: PlaneBox, voxel_size_nm: Nm3) -> Picture:
    """The picture of one layer: `values` ([c,] z, y, x) of the plane's box; LSDs and affinities become colours."""
    number = AXES.index(plane.axis)
    image = np.take(values, 0, axis=values.ndim - 3 + number)
    kind: LayerKind = "grey"
    if layer in ("lsds", "affinities"):
        image, kind = three_channels(image), "colour"
    elif layer not in ("raw", "lsd_error"):
        image, kind = image.astype(np.uint64), "labels"
    row, column = (voxel_size_nm[other] for other in range(3) if other != number)
    return Picture(layer, kind, plane.axis, plane.index_vox, np.ascontiguousarray(image), (row, column))


def places_in(root: Path, shown: tuple[ShownVolume, ...], volumes: dict[str, Volume]) -> dict[str, Placed]:
    """For neuroglancer: by name, the path inside the experiment folder and the place of those that were opened."""
    return {
        layer.name: Placed(
            str(layer.folder.relative_to(root)), volumes[layer.name].geometry, volumes[layer.name].array_axes
        )
        for layer in shown
        if layer.name in volumes
    }
