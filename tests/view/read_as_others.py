"""Run in the environment of readers.lock: what the field's own tools make of an OME-Zarr image. Prints JSON.

Official schemas 0.5, strict ones too (ngff-zarr); the field's models (ome-zarr-models);
the reference reader (ome-zarr).
Anything that one of them refuses is an exception.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import zarr
from jsonschema import Draft202012Validator
from ngff_zarr.validate import _schema_registry, load_schema, validate
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
from ome_zarr_models.v05 import Image
from ome_zarr_models.v05.image_label import ImageLabel
from ome_zarr_models.v05.labels import Labels


def read(folder: Path) -> dict[str, object]:
    """The image in a folder and its labels; fails if one of the tools refuses it."""
    attributes = json.loads((folder / "zarr.json").read_text())["attributes"]
    is_label = folder.parent.name == "labels"
    for strict in (False, True):
        validate(attributes, version="0.5", model="image", strict=strict)
    if is_label:
        validate(attributes, version="0.5", model="label")
    model = (ImageLabel if is_label else Image).from_zarr(zarr.open_group(folder, mode="r"))
    # From a label the reader continues to its image and to the labels beside it.
    node = next(node for node in Reader(parse_url(folder))() if node.zarr.basename() == folder.name)
    levels = [np.asarray(level) for level in node.data]
    return {
        "axes": [[axis.name, axis.type, axis.unit] for axis in model.ome_attributes.multiscales[0].axes],
        "transforms": node.metadata["coordinateTransformations"],
        "shapes": [level.shape for level in levels],
        "dtypes": [level.dtype.name for level in levels],
        "strict_about_labels": _complaints(attributes) if is_label else [],
        "sha256": [hashlib.sha256(np.ascontiguousarray(level).data).hexdigest() for level in levels],
    }


def _complaints(attributes: dict[str, object]) -> list[str]:
    """What the strict schema of labels would rather have."""
    schema = load_schema(version="0.5", model="label", strict=True)
    found = Draft202012Validator(schema, registry=_schema_registry("0.5")).iter_errors(attributes)
    return [error.message for error in found]


def main(root: Path) -> None:
    """The image, each of its labels, each image beside it."""
    labels = Labels.from_zarr(zarr.open_group(root / "labels", mode="r")).ome_attributes.labels
    beside = sorted(path for path in (root / "images").iterdir() if path.is_dir())
    found = {"raw": read(root), **{name: read(root / "labels" / name) for name in labels}}
    json.dump({**found, **{path.name: read(path) for path in beside}}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
