"""The checkpoint bundle: everything predict needs to run a network, in one folder, without training code.

checkpoints/00001000/
    bundle.json            this model
    weights.safetensors    the network's weights
    bundle.sha256          hash of bundle.json, but for the hash of the weights (written by trainings)
    resume.pt              optimizer and random state (training only)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Writer, require_contract
from lsdflow_contract.model import StrictModel

BUNDLE_JSON = "bundle.json"
DESCRIPTION_HASH = "bundle.sha256"
WEIGHTS = "weights.safetensors"
RESUME = "resume.pt"

Mode = Literal["acrlsd", "mtlsd", "affinities"]
Kind = Literal["lsd", "acrlsd", "mtlsd", "affinities"]


class UNetSpec(StrictModel):
    """The valid-convolution U-Net of the LSD paper."""

    in_channels: int = Field(ge=1, description="1 (raw) or 11 (raw + 10 LSDs)")
    num_fmaps: int = Field(ge=1, description="feature maps of the top level")
    fmap_inc_factor: int = Field(ge=1, description="feature maps grow by this factor from level to level")
    downsample_factors: tuple[Vox3, ...] = Field(description="pooling of each level, z,y,x")
    kernel_size: int = Field(default=3, ge=1, description="edge of each convolution, voxels")
    convs_per_level: int = Field(default=2, ge=1, description="convolutions per level and direction")


class Bundle(StrictModel):
    """What a network is: shapes, voxel size, outputs, provenance, and the sha256 of its weights."""

    contract: str = CONTRACT_VERSION
    writer: Writer
    kind: Kind
    iteration: int = Field(ge=0)
    framework: Literal["torch", "tensorflow"] = "torch"
    unet: UNetSpec
    outputs: dict[str, int] = Field(description="output name -> channels: lsds 10, affs 3")
    neighborhood: tuple[Vox3, ...] = ()
    train_input_shape_vox: Vox3
    train_output_shape_vox: Vox3
    predict_input_shape_vox: Vox3
    predict_output_shape_vox: Vox3
    voxel_size_nm: Nm3
    sigma_nm: Nm3 | None = Field(default=None, description="LSD sigma; none for a network without LSDs")
    lsd_bundle_sha256: str | None = Field(default=None, description="weights of the LSD net it was trained with")
    training_key: str = Field(default="", description="hash of the training parameters and volumes")
    validation_loss: float | None = None
    weights_sha256: str = ""


class BestCheckpoint(StrictModel):
    """Which bundle of a training stage the next stage uses."""

    iteration: int
    weights_sha256: str
    validation_loss: float | None = None


def bundle_folder(checkpoints: Path, iteration: int) -> Path:
    """Folder of the bundle of an iteration."""
    return checkpoints / f"{iteration:08d}"


def bundle_iterations(checkpoints: Path) -> list[int]:
    """Iterations that have a bundle, ascending."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit() and (p / BUNDLE_JSON).exists())


def hash_of_description(description: Any) -> str:
    """Hash of bundle.json without the hash of the weights, which is known only when they are written."""
    if isinstance(description, dict):
        description = {name: value for name, value in description.items() if name != "weights_sha256"}
    return hash_of(description)


def read_bundle(folder: Path) -> Bundle:
    """The bundle's description. MissingInput if absent, ContractMismatch / BadData if it does not fit or is damaged."""
    path = folder / BUNDLE_JSON
    if folder.is_file():
        raise BadData(
            "a checkpoint in one file is refused: opening a pickle can run code",
            where=folder,
            wanted=f"a folder with {BUNDLE_JSON} and {WEIGHTS}",
            found=folder.name,
            hint="give the folder of a bundle, or an iteration",
        )
    if not path.exists():
        raise MissingInput("no checkpoint bundle", where=folder, wanted=BUNDLE_JSON)
    raw = read_json(path)
    if isinstance(raw, dict):
        require_contract(str(raw.get("contract", "")), path)
    _require_as_written(folder, raw)
    try:
        return Bundle.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise BadData("damaged bundle", where=path, found=error) from error


def _require_as_written(folder: Path, description: Any) -> None:
    """BadData if bundle.json is not what its training wrote; bundles of other writers have no hash of it."""
    hash_file = folder / DESCRIPTION_HASH
    if not hash_file.exists():
        return
    wanted, found = hash_file.read_bytes().strip().decode(errors="replace"), hash_of_description(description)
    if wanted != found:
        raise BadData(
            "the description of the checkpoint is damaged or was changed",
            where=folder / BUNDLE_JSON,
            wanted=f"sha256 {wanted[:64]}",
            found=f"sha256 {found}",
            hint=f"use another checkpoint; if you changed it on purpose, delete {hash_file}",
        )


def write_best(path: Path, best: BestCheckpoint) -> None:
    """Record which bundle the next stage uses."""
    write_json(path, best.model_dump())


def read_best(path: Path) -> BestCheckpoint:
    """Which bundle to use. MissingInput if training has written none."""
    if not path.exists():
        raise MissingInput("no checkpoint has been chosen", where=path, hint="train first")
    try:
        return BestCheckpoint.model_validate(read_json(path))
    except ValidationError as error:
        raise BadData("damaged file", where=path, found=error) from error
