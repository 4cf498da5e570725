"""The options that train-lsd and train-acrlsd share, as a table of the experiment file.

Options left out come from the profile of the experiment: see profiles.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from lsdflow_contract.geometry import LengthsField, Vox3
from lsdflow_contract.model import StrictModel


class TrainingConfig(StrictModel):
    """What is learnt from which volumes, how long, how fast, and what is kept."""

    backend: Literal["torch"] = Field(default="torch", description="framework")
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
    precision: Literal["auto", "float32", "bf16"] = Field(default="auto", description="bf16 where the device has it")
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
    threads: int | None = Field(default=None, ge=1, description="torch threads; none = all cores")

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
    """[train-acrlsd]: also which LSD checkpoint the affinity network is trained with (mode acrlsd)."""

    lsd_checkpoint: Literal["best"] | int = Field(
        default="best", description="LSD bundle of mode acrlsd: best, or an iteration of train-lsd"
    )
