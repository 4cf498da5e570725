"""A fully resolved training: all options have values, lengths are in voxels or nm.  Made by resolve.resolve_recipe.

A field with a default was added after the first trainings: it is part of a training's key only if it differs from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lsdflow_contract.checkpoint import Kind, UNetSpec
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_training.data.patch_maker import DataPath
from lsdflow_training.initial_weights import InitialWeights
from lsdflow_training.processes.distribution import Distribution, StepOptions
from lsdflow_training.records import Records
from lsdflow_training.steering import Steering

Schedule = Literal["constant", "one_cycle"]


@dataclass(frozen=True)
class Augmentation:
    """How patches are deformed and their intensities changed.  Probabilities and angles as in gunpowder; sizes in
    voxels; intensities are 0 to 1.  Sections are planes of z.  The default of a field switches it off.

    intensity_per_section: scale, shift and gamma are drawn for each section, not for the patch.
    gamma: range of the exponent, whose logarithm is uniform.
    noise_probability: share of patches with Gaussian noise of standard deviation noise_std.
    blur_probability: share of patches (anisotropic: of sections, blurred in y and x) that are blurred by a Gaussian
    with a standard deviation up to blur_sigma_vox.
    *_section_probability, low_contrast_probability, artifact_probability: share of sections that are black, have their
    contrast scaled by low_contrast_scale, are partly covered by another section of the patch, or repeat a neighbour.
    """

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
    intensity_per_section: bool = False
    gamma: tuple[float, float] = (1.0, 1.0)
    noise_probability: float = 0.0
    noise_std: float = 0.05
    blur_probability: float = 0.0
    blur_sigma_vox: float = 1.5
    missing_section_probability: float = 0.0
    low_contrast_probability: float = 0.0
    low_contrast_scale: float = 0.5
    artifact_probability: float = 0.0
    repeated_section_probability: float = 0.0


@dataclass(frozen=True)
class Shapes:
    """Voxels z,y,x: raw read per patch, input of the trained network itself, its output (where the targets are)."""

    raw_vox: Vox3
    network_input_vox: Vox3
    output_vox: Vox3


@dataclass(frozen=True)
class Targets:
    """What is learnt: LSDs, affinities or both, and which labels count.

    ignore_ids: labels that are neither object nor background. sparse_labels: voxels without a label are ignored.
    ignored_labels_count: labels under the mask's IGNORE are context for the shape descriptors of their neighbours.
    """

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
    ignore_ids: tuple[int, ...] = ()
    sparse_labels: bool = False
    ignored_labels_count: bool = True


@dataclass(frozen=True)
class Schedules:
    """How long and how fast to train, and what is kept."""

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
    """Everything a training needs apart from its volumes and its folder."""

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
    step: StepOptions = field(default_factory=StepOptions)
    distribution: Distribution = field(default_factory=Distribution)
    steering: Steering = field(default_factory=Steering)
    pipeline: DataPath = "gunpowder"
    records: Records = field(default_factory=Records)
    initial: InitialWeights | None = None
