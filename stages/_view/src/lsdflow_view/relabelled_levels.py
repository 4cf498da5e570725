"""The segmentations at all thresholds with coarser levels: the fragments of an export, looked up on request.

    zarr.json              an OME-NGFF image (threshold, z, y, x); z, y, x as in the export's image of the fragments
    <level>/zarr.json, <level>/c/<threshold>/<z>/<y>/<x>

A voxel of a coarser level is the most frequent fragment of its bin and shows the segment of that fragment, which is
not always the most frequent segment. Level 0 has the voxels of the experiment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.files import read_json
from lsdflow_contract.lut import KnownLut
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_view.export.ngff_metadata import VERSION
from lsdflow_view.relabelled import AXIS, LutShelf, RelabelledVolume


@dataclass(frozen=True)
class RelabelledImage:
    """The array of each level, finest first, and the attributes with the position of each level."""

    levels: tuple[RelabelledVolume, ...]
    attributes: dict[str, Any]

    def file(self, parts: Sequence[str]) -> bytes | None:
        """The content of a file of the image; None if it does not exist."""
        match tuple(parts):
            case ("zarr.json",):
                group = {"zarr_format": 3, "node_type": "group", "attributes": self.attributes}
                return json.dumps(group).encode()
            case (level, *rest) if level in {str(number) for number in range(len(self.levels))}:
                return self.levels[int(level)].file(rest)
        return None


def relabelled_image(folder: Path, luts: tuple[KnownLut, ...], shelf: LutShelf) -> RelabelledImage:
    """The exported image of the fragments in `folder`, mapped through each of `luts`."""
    (multiscale,) = read_json(folder / "zarr.json")["attributes"]["ome"]["multiscales"]
    datasets = [_with_thresholds(dataset) for dataset in multiscale["datasets"]]
    axes = [{"name": AXIS}, *multiscale["axes"]]
    stepped = {"name": "thresholds", "axes": axes, "datasets": datasets}
    levels = tuple(RelabelledVolume(open_volume(folder, found["path"]), luts, shelf) for found in datasets)
    return RelabelledImage(levels, {"ome": {"version": VERSION, "multiscales": [stepped]}})


def _with_thresholds(dataset: dict[str, Any]) -> dict[str, Any]:
    """A level's path, scale and translation, extended by the threshold axis (scale 1, by index)."""
    leading = {"scale": 1.0, "translation": 0.0}
    moved = [
        {"type": one["type"], one["type"]: [leading[one["type"]], *one[one["type"]]]}
        for one in dataset["coordinateTransformations"]
    ]
    return {"path": dataset["path"], "coordinateTransformations": moved}
