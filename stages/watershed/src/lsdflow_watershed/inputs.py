"""Opens the inputs of the stage: the affinities of predict, and a mask if one is configured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.metadata import read_neighborhood
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_runtime.formats.file_stamp import content_hash, file_stamp
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_watershed.config import WatershedConfig


@dataclass(frozen=True)
class WatershedInputs:
    """Open inputs, addressed by voxels of the target grid, and their identities."""

    grid: Geometry
    affs: Volume
    neighborhood: tuple[Vox3, ...]
    mask: Volume | None
    identities: dict[str, str]


def open_inputs(config: WatershedConfig, layout: ExperimentLayout, resolve: Callable[[str], Path]) -> WatershedInputs:
    """Open the inputs of the stage. `resolve` returns the path of a file that the settings name.

    :raises MissingInput: predict has not finished, or an array is missing.
    :raises BadData: the affinities are not a u8 array with an offset for each channel.
    :raises ConfigError: an array is not aligned with the voxels of the target.
    """
    predict = read_manifest(layout, "predict")
    grid = target_grid(layout)
    affs, neighborhood = open_affinities(*predict.output_array(layout, "affs"), grid)
    mask = open_mask(config, resolve, grid)
    identities = {"predict": predict.identity}
    if mask is not None:
        identities["mask"] = mask_identity(layout, Path(mask.where))
    return WatershedInputs(grid, affs, neighborhood, mask, identities)


def open_affinities(container: Path, dataset: str, grid: Geometry) -> tuple[Volume, tuple[Vox3, ...]]:
    """Open the affinities and check their form; returns the volume and the offsets of its channels."""
    volume = open_volume(container, dataset, grid)
    attributes = dict(volume.array.attrs)
    return volume, read_neighborhood(attributes, volume.channels, volume.dtype.name, volume.where)


def open_mask(config: WatershedConfig, resolve: Callable[[str], Path], grid: Geometry) -> Volume | None:
    """Open the configured mask; None if no mask is configured."""
    if not config.mask_file:
        return None
    path = resolve(config.mask_file)
    if not path.exists():
        raise MissingInput("the mask is not there", where=path, fix="correct watershed.mask_file, or leave it empty")
    volume = open_volume(path, config.mask_dataset, grid)
    if volume.channels or volume.dtype.kind not in "ub":
        raise BadData(
            "this is not a mask",
            where=volume.where,
            wanted="an unsigned integer per voxel, 0 = outside",
            found=f"{volume.dtype}, {volume.channels} channels",
        )
    return volume


def read_mask(inputs: WatershedInputs, box: Box) -> np.ndarray | None:
    """Where fragments may be, u8 0 or 1: inside the mask, and outside missing blocks of predict. None: everywhere.

    The mask is 0 outside its own box.
    """
    known = inputs.affs.known(box)
    if inputs.mask is None:
        return None if known is None else known.astype(np.uint8)
    inside = inputs.mask.read(box, outside="zero") > 0
    return (inside if known is None else inside & known).astype(np.uint8)


def mask_identity(layout: ExperimentLayout, folder: Path) -> str:
    """A hash of the contents of the mask's files, so that a copy is the same mask.

    The files are read only if they have changed since `note_mask`.
    """
    with suppress(MissingInput, BadData):
        noted = read_sealed(_mask_note(layout), "run: watershed run")
        if noted["files"] == file_stamp([folder]):
            return str(noted["contents"])
    return content_hash([folder])


def note_mask(layout: ExperimentLayout, inputs: WatershedInputs) -> None:
    """Record the mask's identity with the state of its files, so that workers need not read the whole mask."""
    if inputs.mask is not None:
        note = {"files": file_stamp([Path(inputs.mask.where)]), "contents": inputs.identities["mask"]}
        write_sealed(_mask_note(layout), note)


def _mask_note(layout: ExperimentLayout) -> Path:
    return layout.store / "watershed_mask.json"
