"""The existing volumes of an experiment, with their names in reports and viewers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import StageError
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import current_key, read_kept_manifest, read_manifest
from lsdflow_contract.viewer_state import Kind, ViewerLayer

KINDS: dict[str, Kind] = {"raw": "image", "lsds": "lsds", "affinities": "affinities", "lsd_error": "image"}
# Stage, output, name.
OUTPUTS = (
    ("predict", "lsds", "lsds"),
    ("predict", "affs", "affinities"),
    ("watershed", "fragments", "fragments"),
    ("segment", "segmentation", "segmentation"),
    ("evaluate", "lsd_error", "lsd_error"),
)
VISIBLE_AT_FIRST = ("raw", "segmentation")


@dataclass(frozen=True)
class ViewerVolume:
    """One volume: its name in reports and viewers, its container and dataset."""

    name: str
    container: Path
    dataset: str

    @property
    def folder(self) -> Path:
        """The folder of the array."""
        return self.container / self.dataset

    @property
    def exists(self) -> bool:
        """True if the dataset exists."""
        return self.folder.exists()


def viewer_volumes(
    layout: ExperimentLayout, truth_dataset: str = LABELS.dataset, *, others: bool = False
) -> tuple[ViewerVolume, ...]:
    """All volumes that exist, in the order of the stages; outputs of finished stages only.

    others: also results that are not current, with names such as `segmentation_1c0f4a2b`, to compare them.
    """
    made = [volume for output in OUTPUTS for volume in _output(layout, *output)]
    known = [
        ViewerVolume("raw", layout.target_volume, RAW.dataset),
        *made,
        ViewerVolume("truth", layout.target_volume, truth_dataset),
        *(_other_results(layout, {volume.folder for volume in made}) if others else []),
    ]
    return tuple(volume for volume in known if volume.exists)


@dataclass(frozen=True)
class Placed:
    """A volume for a viewer: the path below the served address, its geometry, the names of the array's axes."""

    path: str
    geometry: Geometry
    array_axes: tuple[str, ...]


def viewer_layers(places: Mapping[str, Placed]) -> tuple[ViewerLayer, ...]:
    """A layer of the viewer for each volume, by name."""
    return tuple(
        ViewerLayer(
            name=name,
            kind=KINDS.get(name) or KINDS.get(name.rpartition("_")[0], "labels"),
            path=placed.path,
            voxel_size_nm=placed.geometry.voxel_size_nm,
            offset_nm=placed.geometry.offset_nm,
            shape_vox=placed.geometry.shape_vox,
            visible=name in VISIBLE_AT_FIRST,
            array_axes=placed.array_axes,
        )
        for name, placed in places.items()
    )


def _output(layout: ExperimentLayout, stage: str, output: str, name: str) -> list[ViewerVolume]:
    """An output of a stage, if its manifest names it; for evaluate only if it belongs to the current segmentation."""
    with suppress(StageError):
        manifest = read_manifest(layout, stage)
        if stage != "evaluate" or manifest.inputs.get("segment") == read_manifest(layout, "segment").identity:
            return [ViewerVolume(name, *manifest.output_array(layout, output))]
    return []


def _other_results(layout: ExperimentLayout, known: set[Path]) -> list[ViewerVolume]:
    """The arrays of finished results that are not current, with the first letters of their keys in their names.

    An array that several results share appears once; arrays in `known` are left out.
    """
    found: list[ViewerVolume] = []
    for stage, output, name in OUTPUTS:
        current = current_key(layout, stage)[:8]
        for folder in sorted((layout.results / stage).glob("*/manifest.json")):
            key = folder.parent.name
            if key != current:
                with suppress(StageError):
                    array = read_kept_manifest(layout, stage, key).output_array(layout, output)
                    volume = ViewerVolume(f"{name}_{key}", *array)
                    if volume.folder not in {*known, *(other.folder for other in found)}:
                        found.append(volume)
    return found
