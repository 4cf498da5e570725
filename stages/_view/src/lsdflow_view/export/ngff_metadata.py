"""OME-NGFF 0.5 metadata: axes, scale levels with physical scale and translation, lists of labels.

All metadata are under `ome` in the attributes of a zarr 3 group. Lengths are in nanometers. The translation of a level
is the position of the centre of its voxel 0, in a world in which level 0 begins at the volume's offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Geometry
from lsdflow_view.export.pyramid import Level, centre_translation_nm

VERSION = "0.5"
PROVENANCE = "lsdflow"
_METHODS = {
    "image": ("mean", "mean of 2 voxels per axis of the level before, rounded to the nearest, halves up"),
    "labels": ("mode", "most frequent label of 2 voxels per axis of the level before; of equals the lowest"),
}


def image_metadata(name: str, kind: str, base: Geometry, levels: Sequence[Level], channels: int) -> dict[str, Any]:
    """The `ome` block of an image or of one label image."""
    leading = [1.0] if channels else []
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    datasets = [
        {
            "path": str(level.number),
            "coordinateTransformations": [
                {"type": "scale", "scale": [*leading, *level.voxel_size_nm]},
                {"type": "translation", "translation": [*(0.0 for _ in leading), *centre_translation_nm(base, level)]},
            ],
        }
        for level in levels
    ]
    method, description = _METHODS[kind]
    multiscale = {
        "name": name,
        "axes": [*([{"name": "c", "type": "channel"}] if channels else []), *axes],
        "datasets": datasets,
        "type": method,
        "metadata": {"description": description, "method": "lsdflow-view export ome"},
    }
    of_labels = {"image-label": {"source": {"image": "../../"}}} if kind == "labels" else {}
    return {"version": VERSION, "multiscales": [multiscale], **of_labels}


def labels_metadata(names: Sequence[str]) -> dict[str, Any]:
    """The `ome` block of the group that holds label images."""
    return {"version": VERSION, "labels": list(names)}


def write_group(folder: Path, attributes: Mapping[str, Any]) -> None:
    """Write a zarr 3 group with these attributes, or replace the attributes of an existing one."""
    write_json(folder / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def image_folder(out: Path, name: str, kind: str) -> Path:
    """The folder of the multiscale image of a layer: `out` itself for raw, a folder in `out` for the others."""
    if name == "raw":
        return out
    return out / ("labels" if kind == "labels" else "images") / name


def finished_layers(out: Path) -> dict[str, str] | None:
    """Key of each layer of a finished export; None if `out` holds none."""
    group = out / "zarr.json"
    if not group.is_file():
        return None
    attributes = read_json(group).get("attributes", {})
    layers = attributes.get(PROVENANCE, {}).get("layers")
    return dict(layers) if isinstance(layers, dict) else None
