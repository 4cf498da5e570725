"""The options that train-lsd and train-acrlsd share, as a table of the experiment file.

Options left out come from the profile of the experiment: see profiles.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, field_validator

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, is_neighborhood
from lsdflow_contract.geometry import LengthsField, Vox3
from lsdflow_training.data.patch_maker import DataPath
from lsdflow_training.distributed_config import DistributedConfig
from lsdflow_training.records import RecordsConfig
from lsdflow_training.steering import SteeringConfig

Probability = Annotated[float, Field(ge=0, le=1)] | None


class TrainingConfig(DistributedConfig, SteeringConfig, RecordsConfig):
    """What is learnt from which volumes, how long, how fast, and what is kept."""

    backend: Literal["torch", "tensorflow"] = Field(
        default="torch", description="framework; tensorflow: the same networks and bundle, if installed"
    )
    volumes: tuple[str, ...] = Field(default=(), description="names of prepared training volumes; empty = all")
    probabilities: tuple[float, ...] = Field(
        default=(), description="how often each volume is drawn (sum 1, one per volume); empty = as prepare says"
    )
    sigma: LengthsField | None = Field(
        default=None, description="LSD Gaussian, standard deviation; none = 10 of the shortest voxel edges"
    )
    lsd_downsample: int = Field(default=2, ge=1, le=4, description="LSD statistics from every n-th voxel")
    lsd_engine: Literal["lsdflow", "lsds"] = Field(
        default="lsdflow", description="who computes LSD targets; lsds: the published package, if installed, far slower"
    )
    grow_boundary_vox: int | None = Field(
        default=None, ge=0, description="background grown between neurons, voxels; none = profile"
    )
    train_background: bool = Field(
        default=False,
        description="true: LSDs are trained to be 0 at boundaries and on background; false: they are not trained there",
    )
    balance_labels: bool | None = Field(
        default=None, description="weigh affinities 0 and 1 alike in each patch, as published; none = profile"
    )
    min_masked: float = Field(default=0.5, ge=0, lt=1, description="share of a patch that must not be ignored")
    sparse_labels: bool = Field(
        default=False,
        description="few voxels are labelled: others are ignored, and patches lie around labelled voxels (instead of "
        "min_masked)",
    )
    ignore_ids: tuple[int, ...] = Field(
        default=(), description="labels that are neither object nor background (glia, say): never trained"
    )
    ignored_labels: Literal["context", "unused"] = Field(
        default="context",
        description="labels of ignored voxels: context for the shape of their neighbours (as published), or not used",
    )
    initial_weights: str | None = Field(
        default=None,
        description="begin with the weights of this checkpoint of the same network (its folder, or train/<stage> of an "
        "experiment: its best); none = random",
    )
    num_fmaps: int | None = Field(default=None, ge=1, description="feature maps of the top level; none = profile")
    fmap_inc_factor: int | None = Field(default=None, ge=1, description="growth from level to level; none = profile")
    downsample_factors: tuple[Vox3, ...] | None = Field(default=None, description="pooling z,y,x; none = profile")
    input_shape_vox: Vox3 | None = Field(default=None, description="input of the network in training; none = profile")
    predict_input_shape_vox: Vox3 | None = Field(default=None, description="input in prediction; none = profile")
    max_iteration: int | None = Field(default=None, ge=1, description="total over all runs; none = profile")
    max_minutes: float | None = Field(default=None, gt=0, description="stop after this time; none = profile or never")
    learning_rate: float | None = Field(default=None, gt=0, description="Adam; none = profile")
    schedule: Literal["constant", "one_cycle"] | None = Field(
        default=None, description="constant, or warm-up and cosine decay; none = profile"
    )
    elastic_probability: float | None = Field(
        default=None, ge=0, le=1, description="how often each elastic deformation is applied; none = profile"
    )
    slip_probability: Probability = Field(default=None, description="share of sections that lie aside; none = profile")
    shift_probability: Probability = Field(
        default=None, description="share of sections that lie aside together with all that follow; none = profile"
    )
    max_misalign_vox: int | None = Field(default=None, ge=0, description="how far aside, y and x; none = profile")
    intensity_per_section: bool | None = Field(
        default=None, description="change intensities section by section, not patch by patch; none = profile"
    )
    gamma: tuple[PositiveFloat, PositiveFloat] | None = Field(
        default=None, description="range of the exponent of intensities; 1, 1 = unchanged; none = profile"
    )
    noise_probability: Probability = Field(default=None, description="share of patches with noise; none = profile")
    noise_std: float | None = Field(
        default=None, ge=0, le=1, description="Gaussian noise, standard deviation where white is 1; none = profile"
    )
    blur_probability: Probability = Field(
        default=None, description="share of patches (anisotropic: of sections) out of focus; none = profile"
    )
    blur_sigma_vox: float | None = Field(default=None, gt=0, description="strongest blur, voxels; none = profile")
    missing_section_probability: Probability = Field(
        default=None, description="share of sections that are black; none = profile"
    )
    low_contrast_probability: Probability = Field(
        default=None, description="share of sections of low contrast; none = profile"
    )
    low_contrast_scale: Probability = Field(default=None, description="their contrast, 0 to 1; none = profile")
    artifact_probability: Probability = Field(
        default=None, description="share of sections partly covered by another piece of the volume; none = profile"
    )
    repeated_section_probability: Probability = Field(
        default=None, description="share of sections dropped, with their neighbour in their place; none = profile"
    )
    validation_fraction: float | None = Field(
        default=None, ge=0, lt=1, description="end of each volume (z) kept for validation; none = profile"
    )
    validation_patches: int = Field(default=8, ge=1, description="fixed patches the validation loss is the mean of")
    validation_every: int | None = Field(default=None, ge=1, description="iterations; none = profile")
    checkpoint_every: int | None = Field(default=None, ge=1, description="iterations; none = profile")
    keep_checkpoints: int | None = Field(default=None, ge=0, description="newest to keep, 0 = all; none = profile")
    snapshot_every: int | None = Field(default=None, ge=1, description="iterations; none = profile")
    num_workers: int | None = Field(
        default=None, ge=0, description="processes that make patches, 0 = none; none = half of the cores"
    )
    cache_size: int = Field(default=40, ge=1, description="patches made ahead of time")
    pipeline: DataPath = Field(
        default="gunpowder",
        description="gunpowder: patches are made by num_workers processes; gpu: they read, the training device makes "
        "the same patches, up to rounding",
    )
    threads: int | None = Field(default=None, ge=1, description="torch threads; none = all cores")

    def at_default(self) -> set[str]:
        """Also what is left for people alone."""
        drawn = {"initial_weights"} if self.initial_weights is None else set()
        return super().at_default() | self.unused_records() | drawn

    @field_validator("ignore_ids")
    @classmethod
    def _are_labels(cls, ids: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 0 < label < 2**64 for label in ids):
            msg = f"ignore_ids are labels, 1 to 2^64 - 1, not {list(ids)}; voxels without a label (0): sparse_labels"
            raise ValueError(msg)
        return ids

    @field_validator("gamma")
    @classmethod
    def _from_low_to_high(cls, exponents: tuple[float, float] | None) -> tuple[float, float] | None:
        if exponents is not None and exponents[0] > exponents[1]:
            msg = f"gamma is [smallest, largest exponent], not {list(exponents)}"
            raise ValueError(msg)
        return exponents

    @field_validator("probabilities")
    @classmethod
    def _sum_to_one(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if values and (abs(sum(values) - 1) > 1e-6 or min(values) < 0):
            msg = f"probabilities must be >= 0 and sum to 1 (within 1e-6); their sum is {sum(values):g}"
            raise ValueError(msg)
        return values


class LsdTrainingConfig(TrainingConfig):
    """[train-lsd]: nothing beyond the shared options."""


class AffinityTrainingConfig(TrainingConfig):
    """[train-acrlsd]: also which affinities are learnt, and with which LSD checkpoint (mode acrlsd)."""

    neighborhood: tuple[Vox3, ...] = Field(
        default=AFFINITY_NEIGHBORHOOD,
        description="offsets z,y,x in voxels of the affinities that are learnt and predicted: the three nearest, then "
        "any others (for the mutex watershed)",
    )

    lsd_checkpoint: Literal["best"] | int = Field(
        default="best", description="LSD bundle of mode acrlsd: best, or an iteration of train-lsd"
    )

    def recorded(self) -> dict[str, Any]:
        """The neighborhood only if it is not that of every network so far: manifests stay what they were."""
        usual = self.neighborhood == AFFINITY_NEIGHBORHOOD
        return self.model_dump(mode="json", exclude=self.at_default() | ({"neighborhood"} if usual else set()))

    @field_validator("neighborhood")
    @classmethod
    def _nearest_first(cls, offsets: tuple[Vox3, ...]) -> tuple[Vox3, ...]:
        if not is_neighborhood(offsets):
            nearest = ", ".join(str(list(offset)) for offset in AFFINITY_NEIGHBORHOOD)
            msg = f"the neighborhood begins with {nearest}; other offsets follow, none (nor its opposite) twice"
            raise ValueError(msg)
        return offsets
