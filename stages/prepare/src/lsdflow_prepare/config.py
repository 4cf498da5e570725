"""The table [prepare] of experiment.toml: which volumes to train on, which volume to segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from lsdflow_contract.geometry import Lengths
from lsdflow_contract.model import StrictModel

PROBABILITY_TOLERANCE = 1e-6
# Keys of a volume that hold paths. What they name is an input, which is recognised by its files.
PATHS = {"raw", "labels", "truth", "mask"}
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _as_u64(values: list[int]) -> list[int]:
    """Ids as uint64; a negative id wraps around, so -3 is uint64(-3), the ignore label of hemibrain."""
    if any(not -(2**63) <= value < 2**64 for value in values):
        msg = "ids are 64-bit integers"
        raise ValueError(msg)
    return [value % 2**64 for value in values]


Ids = Annotated[list[int], AfterValidator(_as_u64)]


class Region(StrictModel):
    """A cuboid: lengths in nm are world positions, lengths in vox are indices of the raw array."""

    offset: Lengths = Field(
        description='first corner, z,y,x: "0, 0, 0 vox" (voxel index of raw) or "1600, 0, 0 nm" (world coordinates)'
    )
    shape: Lengths = Field(description='size, z,y,x: "250 vox" or "2000, 2500, 2500 nm"')


class VolumeTable(StrictModel):
    """Options of both training and target volumes."""

    raw: str = Field(description="path of the raw volume: zarr, N5, HDF5, TIFF, OME-NGFF, precomputed or JSON ROI")
    raw_dataset: str | None = Field(
        default=None, description="dataset in it (default: the container itself if it is a volume, else volumes/raw)"
    )
    raw_range: tuple[float, float] | None = Field(
        default=None,
        description="grey values that become 0 and 255; required unless raw is uint8, or float in [0, 1]; [255, 0] "
        "inverts the contrast",
    )
    raw_channel: int | None = Field(
        default=None, ge=0, description="channel to use of a raw volume with several channels"
    )
    roi: Region | None = Field(default=None, description="use only this region")
    voxel_size: Lengths | None = Field(
        default=None,
        description='voxel size z,y,x, for example "40, 8, 8 nm" (default: from the metadata of the volume; required '
        "if there is none)",
    )
    expansion_factor: float = Field(
        default=1.0, gt=0, description="expansion microscopy: voxel sizes are divided by this factor"
    )
    # Left out where it is not set: the keys of volumes hash this form.
    resample_to: Lengths | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description='resample the volume to this voxel size, z,y,x, for example "8 nm": along each axis a whole '
        "multiple of its own (raw: mean of the voxels) or a whole fraction (raw: linear interpolation); labels and "
        "mask take the value of one voxel (default: not resampled)",
    )
    sparse: bool = Field(
        default=False,
        description="true: chunks that were never written count as zeros; false: they are reported as lost data",
    )
    mask_train_value: int = Field(
        default=1, ge=1, le=255, description="value of the mask that means: train on this voxel"
    )
    ignore_ids: Ids = Field(default=[], description="labels whose voxels are not trained, for example -3 = uint64(-3)")
    background_ids: Ids = Field(default=[], description="labels whose voxels are trained as background")
    ignore_regions: list[Region] = Field(default=[], description="regions that are not trained")
    pad_labels: bool = Field(
        default=False,
        description="true: labels cover only a part of raw, the rest is not trained; false: report an error in this "
        "case",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.raw_range is not None and self.raw_range[0] == self.raw_range[1]:
            msg = f"raw_range needs two values that differ, those that become 0 and 255; found {self.raw_range}"
            raise ValueError(msg)
        for name, size in (("voxel_size", self.voxel_size), ("resample_to", self.resample_to)):
            if size is not None and (size.unit == "vox" or min(size.values) <= 0):
                msg = f'{name} needs a unit of length and must be positive, e.g. "40, 8, 8 nm"; found "{size}"'
                raise ValueError(msg)
        both = set(self.ignore_ids) & set(self.background_ids)
        if both:
            msg = f"ids {sorted(both)} are both in ignore_ids and in background_ids"
            raise ValueError(msg)
        return self


class TrainingVolume(VolumeTable):
    """[[prepare.training]]: one volume with labels."""

    name: Name = Field(description="name of the volume, stored as <name>.zarr")
    labels: str | None = Field(default=None, description="path of the neuron labels (default: the same as raw)")
    labels_dataset: str | None = Field(default=None, description="dataset in it (default: volumes/labels/neuron_ids)")
    mask: str | None = Field(
        default=None,
        description='path of a mask: 0 ignore, 1 train, 2 background; "none": train everywhere (default: '
        "volumes/labels/mask in the container of the labels if it exists, else everywhere)",
    )
    mask_dataset: str | None = Field(default=None, description="dataset in it (default: volumes/labels/mask)")
    probability: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="how often this volume is sampled in training (default: in proportion to its labelled volume)",
    )


class TargetVolume(VolumeTable):
    """[prepare.target]: the volume to segment, with truth for evaluation if there is any."""

    truth: str | None = Field(default=None, description="path of the ground truth, for scores (default: none)")
    truth_dataset: str | None = Field(default=None, description="dataset in it (default: volumes/labels/neuron_ids)")
    mask: str | None = Field(
        default=None,
        description="path of a mask, 0 = outside; it is copied to volumes/labels/mask of the target, for predict.mask "
        "and evaluate.regions (default: none)",
    )
    mask_dataset: str | None = Field(default=None, description="dataset in it (default: volumes/labels/mask)")


class PrepareConfig(StrictModel):
    """[prepare]: training volumes and the volume to segment."""

    training: list[TrainingVolume] = Field(default=[], description="the volumes to train on")
    target: TargetVolume | None = Field(default=None, description="the volume to segment")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.training and self.target is None:
            msg = "there is nothing to prepare: give [[prepare.training]] or [prepare.target]"
            raise ValueError(msg)
        names = [volume.name for volume in self.training]
        if len(set(names)) != len(names):
            msg = f"two training volumes have the same name: {sorted(names)}"
            raise ValueError(msg)
        _check_probabilities([volume.probability for volume in self.training])
        return self

    def volumes(self) -> list[tuple[str, TrainingVolume | TargetVolume]]:
        """All volumes with their names: the training volumes in their order, then the target."""
        training = [(volume.name, volume) for volume in self.training]
        return [*training, *([] if self.target is None else [("target", self.target)])]


def without_paths(dumped: Any) -> Any:
    """A dumped table without the paths of its volumes: two tables may name the same files differently."""
    if isinstance(dumped, Mapping):
        return {key: without_paths(value) for key, value in dumped.items() if key not in PATHS}
    return [without_paths(value) for value in dumped] if isinstance(dumped, list) else dumped


def _check_probabilities(given: list[float | None]) -> None:
    """Require that all volumes have a probability and these sum to 1, or that none has one."""
    numbers = [value for value in given if value is not None]
    if not numbers:
        return
    if len(numbers) != len(given):
        msg = f"{len(given)} training volumes, but {len(numbers)} have a probability: give one to all or to none"
        raise ValueError(msg)
    if abs(sum(numbers) - 1) > PROBABILITY_TOLERANCE:
        msg = f"the probabilities of the training volumes must sum to 1, found {numbers} = {sum(numbers):g}"
        raise ValueError(msg)
