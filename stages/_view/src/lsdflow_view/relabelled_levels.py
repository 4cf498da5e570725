"""The segmentations of all thresholds in the levels of an export: its fragments of each level, looked up on demand.

    zarr.json              an OME-NGFF image (threshold, z, y, x); space as the export's image of the fragments tells it
    <level>/zarr.json, <level>/c/<threshold>/<z>/<y>/<x>

A voxel of a coarser level is the most frequent fragment of its bin, so it shows the segment of that fragment: for the
eye, from afar. Level 0 has the voxels of the experiment.
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
    """The array of each level, finest first, and the attributes that tell where each of them lies."""

    levels: tuple[RelabelledVolume, ...]
    attributes: dict[str, Any]

    def file(self, parts: Sequence[str]) -> bytes | None:
        """The content of a file of the image; None if there is none."""
        match tuple(parts):
            case ("zarr.json",):
                group = {"zarr_format": 3, "node_type": "group", "attributes": self.attributes}
                return json.dumps(group).encode()
            case (level, *rest) if level in {str(number) for number in range(len(self.levels))}:
                return self.levels[int(level)].file(rest)
        return None


def relabelled_image(folder: Path, luts: tuple[KnownLut, ...], shelf: LutShelf) -> RelabelledImage:
    """The exported image of the fragments in `folder`, under each of `luts`."""
    (multiscale,) = read_json(folder / "zarr.json")["attributes"]["ome"]["multiscales"]
    datasets = [_with_thresholds(dataset) for dataset in multiscale["datasets"]]
    axes = [{"name": AXIS}, *multiscale["axes"]]
    stepped = {"name": "thresholds", "axes": axes, "datasets": datasets}
    levels = tuple(RelabelledVolume(open_volume(folder, found["path"]), luts, shelf) for found in datasets)
    return RelabelledImage(levels, {"ome": {"version": VERSION, "multiscales": [stepped]}})


def _with_thresholds(dataset: dict[str, Any]) -> dict[str, Any]:
    """A level's path, scale and translation with those of the leading axis: thresholds are counted."""
    leading = {"scale": 1.0, "translation": 0.0}
    moved = [
        {"type": one["type"], one["type"]: [leading[one["type"]], *one[one["type"]]]}
        for one in dataset["coordinateTransformations"]
    ]
    return {"path": dataset["path"], "coordinateTransformations": moved}
