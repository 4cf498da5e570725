"""Training volumes in data/training/<name>.zarr (zarr format 2), described from their metadata files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import LABELS, MASK, RAW, ArraySpec
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Box, Geometry, Nm3
from lsdflow_contract.metadata import read_geometry, understanding_metadata
from lsdflow_contract.sealing import require_sealed_array


@dataclass(frozen=True)
class TrainingVolume:
    """A prepared volume; boxes are in voxels of its raw array."""

    name: str
    path: Path
    voxel_size_nm: Nm3
    raw: Box
    labels: Box
    mask: Box | None


@dataclass(frozen=True)
class Source:
    """A volume, how often it is drawn, and the box held out for validation (never trained)."""

    volume: TrainingVolume
    probability: float
    validation: Box | None


def open_training_volume(path: Path) -> TrainingVolume:
    """Read the metadata of one training volume.

    Raises MissingInput (no volume, no raw or labels) and BadData (not zarr format 2, not 3-D, voxel sizes differ,
    labels outside raw or off its voxel grid).
    """
    if not path.is_dir():
        raise MissingInput("no such training volume", where=path, fix="run prepare first")
    with understanding_metadata(path):
        return _training_volume(path)


def _training_volume(path: Path) -> TrainingVolume:
    raw = _geometry(path, RAW)
    labels = _geometry(path, LABELS)
    has_mask = (path / MASK.dataset / ".zarray").is_file()
    return TrainingVolume(
        name=path.name.removesuffix(".zarr"),
        path=path,
        voxel_size_nm=raw.voxel_size_nm,
        raw=raw.box,
        labels=_box_on(raw, labels, path / LABELS.dataset),
        mask=_box_on(raw, _geometry(path, MASK), path / MASK.dataset) if has_mask else None,
    )


def validation_slab(labels: Box, fraction: float) -> Box | None:
    """The last `fraction` of a volume along z (at least one section); None for fraction 0."""
    if fraction <= 0:
        return None
    depth = max(1, round(labels.shape_vox[0] * fraction))
    z, y, x = labels.begin_vox
    return Box((z + labels.shape_vox[0] - depth, y, x), (depth, *labels.shape_vox[1:]))


def _geometry(path: Path, spec: ArraySpec) -> Geometry:
    folder = path / spec.dataset
    if not (folder / ".zarray").is_file():
        raise MissingInput(
            f"the training volume has no {spec.dataset}", where=path, wanted="a zarr format 2 array", fix="run prepare"
        )
    require_sealed_array(folder)
    shape = read_json(folder / ".zarray").get("shape", [])
    if len(shape) != 3:
        raise BadData("a training array must be 3-D (z,y,x)", where=folder, found=f"shape {shape}")
    attributes = read_json(folder / ".zattrs") if (folder / ".zattrs").is_file() else {}
    return read_geometry(attributes, (int(shape[0]), int(shape[1]), int(shape[2])), folder)


def _box_on(raw: Geometry, other: Geometry, where: Path) -> Box:
    """The box of another array on the voxel grid of raw."""
    box = Box(other.voxel_offset_from(raw, where), other.shape_vox)
    if not raw.box.contains(box):
        raise BadData("the array lies outside the raw data", where=where, wanted=f"within {raw.box}", found=str(box))
    return box
