"""What a training does, fully resolved: no option left open, lengths in voxels or nm.  Made by config.resolve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lsdflow_contract.checkpoint import Kind, UNetSpec
from lsdflow_contract.geometry import Nm3, Vox3

Schedule = Literal["constant", "one_cycle"]


@dataclass(frozen=True)
class Augmentation:
    """How patches are deformed.  Probabilities and angles as in gunpowder; sizes in voxels."""

    elastic_probability: float
    control_point_spacing_vox: Vox3
    jitter_sigma_vox: tuple[float, float, float]
    rotation_max_rad: float
    slip_probability: float
    shift_probability: float
    max_misalign_vox: int
    subsample: int
    intensity_scale: tuple[float, float]
    intensity_shift: tuple[float, float]
    anisotropic: bool


@dataclass(frozen=True)
class Shapes:
    """Voxels z,y,x: raw read per patch, the trained network's own input, its output (where targets are)."""

    raw_vox: Vox3
    network_input_vox: Vox3
    output_vox: Vox3


@dataclass(frozen=True)
class Targets:
    """What is learnt: LSDs, affinities or both."""

    lsds: bool
    affinities: bool
    sigma_nm: Nm3
    voxel_size_nm: Nm3
    lsd_downsample: int
    lsd_engine: Literal["lsdflow", "lsds"]
    neighborhood: tuple[Vox3, ...]
    grow_boundary_vox: int
    train_background: bool
    balance_labels: bool


@dataclass(frozen=True)
class Schedules:
    """How long and how fast is trained, and what is kept."""

    max_iteration: int
    max_minutes: float | None
    learning_rate: float
    schedule: Schedule
    warmup_iterations: int
    betas: tuple[float, float]
    checkpoint_every: int
    keep_checkpoints: int
    snapshot_every: int
    validation_every: int
    validation_patches: int
    profile_every: int


@dataclass(frozen=True)
class Recipe:
    """Everything a training needs beside its volumes and its folder."""

    stage: str
    kind: Kind
    unet: UNetSpec
    outputs: dict[str, int]
    shapes: Shapes
    predict_input_vox: Vox3
    targets: Targets
    augmentation: Augmentation
    schedules: Schedules
    seed: int
    min_masked: float
    validation_fraction: float
    num_workers: int
    cache_size: int
    threads: int
    device: str
    precision: str
