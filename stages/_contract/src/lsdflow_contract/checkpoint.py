"""The checkpoint bundle: a folder with everything that predict needs to run a network, without training code.

checkpoints/00001000/
    bundle.json            this model
    weights.safetensors    the network's weights
    bundle.sha256          hash of bundle.json without the hash of the weights (written by trainings)
    resume.pt              optimizer and random state (training only)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Writer, require_contract
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed

BUNDLE_JSON = "bundle.json"
DESCRIPTION_HASH = "bundle.sha256"
WEIGHTS = "weights.safetensors"
RESUME = "resume.pt"
# Replaces the hash of the weights in the description of a network that is not trained yet.
PLANNED = "planned "

Mode = Literal["acrlsd", "mtlsd", "affinities"]
Kind = Literal["lsd", "acrlsd", "mtlsd", "affinities"]
OUTPUTS: dict[Kind, dict[str, int]] = {
    "lsd": {"lsds": 10},
    "acrlsd": {"affs": 3},
    "mtlsd": {"lsds": 10, "affs": 3},
    "affinities": {"affs": 3},
}
Upsampling = Literal["reduce", "keep", "repeat"]
Kernels = tuple[tuple[Vox3, ...], ...]


class UNetSpec(StrictModel):
    """The valid-convolution U-Net of the LSD paper."""

    in_channels: int = Field(ge=1, description="1 (raw) or 11 (raw + 10 LSDs)")
    num_fmaps: int = Field(ge=1, description="feature maps of the finest level")
    fmap_inc_factor: int = Field(
        ge=1, description="factor by which the number of feature maps grows from level to level"
    )
    downsample_factors: tuple[Vox3, ...] = Field(description="pooling factors z,y,x of each level")
    kernel_size: int = Field(default=3, ge=1, description="edge of each convolution, in voxels")
    convs_per_level: int = Field(
        default=2, ge=1, description="convolutions per level on the way down, and again on the way up"
    )
    num_fmaps_out: int | None = Field(
        default=None, ge=1, description="feature maps before the output layers; none = num_fmaps"
    )
    upsampling: Upsampling = Field(
        default="reduce",
        description="reduce: transposed convolution to the number of channels of the finer level, then ReLU; keep: "
        "transposed convolution with the same number of channels, without ReLU; repeat: each voxel is "
        "repeated, no weights",
    )
    kernels_down: Kernels | None = Field(
        default=None,
        description="kernels (z,y,x) of each level's convolutions on the way down; none = all have kernel_size",
    )
    kernels_up: Kernels | None = Field(default=None, description="the same for the way up, finest level first")

    def kernels_before(self, level: int) -> tuple[Vox3, ...]:
        """Kernels (z,y,x) of the convolutions of a level on the way down; level 0 is the finest."""
        return self._kernels_alike() if self.kernels_down is None else self.kernels_down[level]

    def kernels_after(self, level: int) -> tuple[Vox3, ...]:
        """Kernels (z,y,x) of the convolutions of a level on the way up; the coarsest level has none."""
        return self._kernels_alike() if self.kernels_up is None else self.kernels_up[level]

    def fmaps_of(self, level: int) -> int:
        """Feature maps of a level on the way down."""
        return self.num_fmaps * int(self.fmap_inc_factor**level)

    def upsampled_fmaps(self, level: int) -> int:
        """Feature maps that a level receives from the coarser one."""
        return self.fmaps_of(level if self.upsampling == "reduce" else level + 1)

    def fmaps_after(self, level: int) -> int:
        """Feature maps of a level on the way up; those of level 0 are the input of the heads."""
        coarsest = level == len(self.downsample_factors)
        return (self.num_fmaps_out or self.num_fmaps) if level == 0 and not coarsest else self.fmaps_of(level)

    @model_validator(mode="after")
    def _has_kernels_of_every_level(self) -> UNetSpec:
        levels = len(self.downsample_factors)
        for name, kernels, wanted in (("down", self.kernels_down, levels + 1), ("up", self.kernels_up, levels)):
            if kernels is not None and (len(kernels) != wanted or not all(kernels)):
                msg = f"kernels_{name} must name the kernels of {wanted} levels, at least one each"
                raise ValueError(msg)
        return self

    @model_serializer(mode="wrap")
    def _without_variants(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out variants that a network does not use, because keys of trainings hash this form."""
        written: dict[str, Any] = handler(self)
        usual = {"num_fmaps_out": None, "upsampling": "reduce", "kernels_down": None, "kernels_up": None}
        return {name: value for name, value in written.items() if name not in usual or value != usual[name]}

    def _kernels_alike(self) -> tuple[Vox3, ...]:
        return ((self.kernel_size,) * 3,) * self.convs_per_level


def outputs_of(kind: Kind, neighborhood: Sequence[Vox3]) -> dict[str, int]:
    """Names and channels of what a network of this kind gives: of affinities, one for each offset of `neighborhood`."""
    return {name: len(neighborhood) if name == "affs" else count for name, count in OUTPUTS[kind].items()}


class Calibration(StrictModel):
    """The thresholds that suit the affinities of a network, chosen where it was not trained."""

    thresholds: dict[str, float] = Field(description="of each merge function, the threshold with the lowest VOI")
    voxels: int = Field(ge=0, description="labelled voxels that they rest on; 0 = not known")
    on: str = Field(description="the volumes with these labels")


class Bundle(StrictModel):
    """The description of a network: shapes, voxel size, outputs, provenance, and the sha256 of its weights."""

    contract: str = CONTRACT_VERSION
    writer: Writer
    kind: Kind
    iteration: int = Field(ge=0)
    framework: Literal["torch", "tensorflow"] = "torch"
    unet: UNetSpec
    outputs: dict[str, int] = Field(description="number of channels of each output: lsds 10, affs 3 or more")
    neighborhood: tuple[Vox3, ...] = ()
    train_input_shape_vox: Vox3
    train_output_shape_vox: Vox3
    predict_input_shape_vox: Vox3
    predict_output_shape_vox: Vox3
    voxel_size_nm: Nm3
    sigma_nm: Nm3 | None = Field(default=None, description="sigma of the LSDs, nm; none for a network without LSDs")
    lsd_bundle_sha256: str | None = Field(
        default=None, description="hash of the weights of the LSD network it was trained with"
    )
    training_key: str = Field(default="", description="hash of the training parameters and volumes")
    validation_loss: float | None = None
    calibration: Calibration | None = Field(
        default=None, description="thresholds for targets without truth; none if nobody measured them"
    )
    weights_sha256: str = ""

    @model_serializer(mode="wrap")
    def _without_missing_calibration(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name != "calibration" or value is not None}

    @property
    def is_planned(self) -> bool:
        """True for the description of a network that is not trained yet and has no weights."""
        return self.weights_sha256.startswith(PLANNED)


class BestCheckpoint(StrictModel):
    """Which bundle of a training stage the next stage uses."""

    iteration: int
    weights_sha256: str
    validation_loss: float | None = None
    chosen_by: Literal["loss", "voi"] = Field(
        default="loss", description="loss: chosen by the training; voi: chosen by lsdflow select-checkpoint"
    )
    voi: float | None = Field(
        default=None, description="VOI (bits, split + merge) of the small segmentation made with it"
    )
    calibration: Calibration | None = Field(
        default=None, description="the thresholds of that segmentation, if the training had held out its region"
    )
    merge_function: str | None = Field(
        default=None, description="the merge function with the lowest VOI there, of those that agglomerate computes"
    )


def bundle_folder(checkpoints: Path, iteration: int) -> Path:
    """Folder of the bundle of an iteration."""
    return checkpoints / f"{iteration:08d}"


def bundle_iterations(checkpoints: Path) -> list[int]:
    """Iterations that have a bundle, ascending."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit() and (p / BUNDLE_JSON).exists())


def hash_of_description(description: Any) -> str:
    """Hash of bundle.json without the hash of the weights, which exists only once they are written."""
    if isinstance(description, dict):
        description = {name: value for name, value in description.items() if name != "weights_sha256"}
    return hash_of(description)


def read_bundle(folder: Path) -> Bundle:
    """The bundle's description. MissingInput if absent, ContractMismatch if incompatible, BadData if damaged."""
    path = folder / BUNDLE_JSON
    if folder.is_file():
        raise BadData(
            "a checkpoint in one file is refused: opening a pickle can run code",
            where=folder,
            wanted=f"a folder with {BUNDLE_JSON} and {WEIGHTS}",
            found=folder.name,
            fix="give the folder of a bundle, or an iteration",
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
    """Raise BadData if bundle.json was changed after training; bundles of other writers have no hash to check."""
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
            fix=f"use another checkpoint; if you changed it on purpose, delete {hash_file}",
        )


def write_best(path: Path, best: BestCheckpoint) -> None:
    """Record which bundle the next stage uses."""
    write_sealed(path, best.model_dump())


def read_best(path: Path) -> BestCheckpoint:
    """Which bundle to use.

    Raises MissingInput (66) if training has written none, BadData (65) if the file was changed, or the network that it
    names has other weights.
    """
    if not path.exists():
        raise MissingInput("no checkpoint has been chosen", where=path, fix="train first")
    fix = f"choose again: {path.parent.name} run (by loss), or lsdflow select-checkpoint (by VOI)"
    try:
        best = BestCheckpoint.model_validate(read_sealed(path, fix))
    except ValidationError as error:
        raise BadData("damaged file", where=path, found=error, fix=fix) from error
    description = bundle_folder(path.parent / "checkpoints", best.iteration) / BUNDLE_JSON
    found = read_json(description) if description.exists() else {}
    weights = found.get("weights_sha256", "") if isinstance(found, dict) else ""
    if weights and weights != best.weights_sha256:
        raise BadData(
            "the best checkpoint is not the one that was chosen",
            where=path,
            wanted=f"iteration {best.iteration} with weights {best.weights_sha256[:12]}",
            found=f"weights {weights[:12]}",
            fix=fix,
        )
    return best
