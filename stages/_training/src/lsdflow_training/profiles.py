"""The profiles: values for omitted options.

"standard" is the published training for isotropic volumes. "tiny" learns in minutes on two CPU cores. "general" is the
recipe of the networks that come with lsdflow: minutes on a GPU, a day on a CPU; benchmarks/README.md has the score of
each ingredient. "general-anisotropic" is the same for thick sections. "snemi3d" is for
thick sections such as SNEMI3D's 30 x 6 x 6 nm: the shapes and section-wise augmentation published for CREMI (40 x 4 x
4 nm; Funke et al. 2018, Sheridan et al. 2022), with mild noise, gamma and blur. "tiny-anisotropic" is "tiny" for thick
sections and for volumes of few sections: it pools along y and x only, and its finest level has kernels within sections.

All hold out sections for validation and for the choice of checkpoint and threshold; "tiny" only of volumes that are
deep enough (155 sections, or 95 thick ones).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lsdflow_contract.checkpoint import Kernels, Kind
from lsdflow_contract.geometry import Vox3
from lsdflow_training.settings import Schedule

FLAT: tuple[Vox3, ...] = ((1, 3, 3), (1, 3, 3))
CUBES: tuple[Vox3, ...] = ((3, 3, 3), (3, 3, 3))


@dataclass(frozen=True)
class Profile:
    """Values for options that the experiment file leaves out."""

    num_fmaps: int
    fmap_inc_factor: int
    downsample_factors: tuple[Vox3, ...]
    input_shape_vox: Vox3
    predict_input_shape_vox: Vox3
    max_iteration: dict[Kind, int]
    max_minutes: float | None
    learning_rate: float
    schedule: Schedule
    elastic_probability: float
    grow_boundary_vox: int
    balance_labels: bool
    validation_fraction: float
    validation_every: int
    checkpoint_every: int
    keep_checkpoints: int
    snapshot_every: int
    # fields of settings.Augmentation whose values differ from the published augmentation of isotropic volumes
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    # if validation_fraction is fewer sections than this, nothing is held out, unless the experiment file says so
    fewest_held_out: int = 1
    # kernels by level, the finest first; None: 3, 3, 3 everywhere
    kernels_down: Kernels | None = None
    kernels_up: Kernels | None = None


STANDARD = Profile(
    num_fmaps=12,
    fmap_inc_factor=6,
    downsample_factors=((2, 2, 2), (2, 2, 2), (3, 3, 3)),
    input_shape_vox=(196, 196, 196),
    predict_input_shape_vox=(268, 268, 268),
    max_iteration={"lsd": 300_000, "acrlsd": 400_000, "mtlsd": 400_000, "affinities": 400_000},
    max_minutes=None,
    learning_rate=0.5e-4,
    schedule="constant",
    elastic_probability=1.0,
    grow_boundary_vox=1,
    balance_labels=True,
    validation_fraction=0.05,
    validation_every=2_000,
    checkpoint_every=10_000,
    keep_checkpoints=10,
    snapshot_every=1_000,
)

TINY = Profile(
    num_fmaps=12,
    fmap_inc_factor=3,
    downsample_factors=((2, 2, 2), (2, 2, 2)),
    input_shape_vox=(84, 84, 84),
    predict_input_shape_vox=(148, 148, 148),
    max_iteration={"lsd": 400, "acrlsd": 450, "mtlsd": 800, "affinities": 800},
    max_minutes=None,
    learning_rate=1e-3,
    schedule="one_cycle",
    elastic_probability=0.2,
    grow_boundary_vox=1,
    balance_labels=True,
    validation_fraction=0.1,
    validation_every=250,
    checkpoint_every=250,
    keep_checkpoints=2,
    snapshot_every=500,
    fewest_held_out=16,
)


TINY_ANISOTROPIC = dataclasses.replace(
    TINY,
    downsample_factors=((1, 2, 2), (1, 2, 2)),
    kernels_down=(FLAT, CUBES, CUBES),
    kernels_up=(FLAT, CUBES),
    input_shape_vox=(20, 124, 124),
    predict_input_shape_vox=(28, 244, 244),
    fewest_held_out=10,
)

GENERAL = dataclasses.replace(
    TINY,
    num_fmaps=16,
    fmap_inc_factor=4,
    input_shape_vox=(124, 124, 124),
    max_iteration={"lsd": 4_000, "acrlsd": 4_000, "mtlsd": 6_000, "affinities": 6_000},
    learning_rate=5e-4,
    elastic_probability=0.5,
    validation_every=500,
    checkpoint_every=500,
    keep_checkpoints=4,
    fewest_held_out=1,
    augmentation={
        "gamma": (0.8, 1.25),
        "noise_probability": 0.2,
        "noise_std": 0.03,
        "blur_probability": 0.1,
    },
)

GENERAL_ANISOTROPIC = dataclasses.replace(
    GENERAL,
    downsample_factors=TINY_ANISOTROPIC.downsample_factors,
    kernels_down=TINY_ANISOTROPIC.kernels_down,
    kernels_up=TINY_ANISOTROPIC.kernels_up,
    input_shape_vox=TINY_ANISOTROPIC.input_shape_vox,
    predict_input_shape_vox=TINY_ANISOTROPIC.predict_input_shape_vox,
)

SNEMI3D = dataclasses.replace(
    STANDARD,
    downsample_factors=((1, 3, 3), (1, 3, 3), (3, 3, 3)),
    input_shape_vox=(84, 268, 268),
    predict_input_shape_vox=(84, 484, 484),
    augmentation={
        "slip_probability": 0.05,
        "shift_probability": 0.05,
        "max_misalign_vox": 10,
        "intensity_per_section": True,
        "gamma": (0.8, 1.25),
        "noise_probability": 0.2,
        "noise_std": 0.03,
        "blur_probability": 0.02,
        "missing_section_probability": 0.03,
        "low_contrast_probability": 0.01,
        "artifact_probability": 0.03,
        "repeated_section_probability": 0.01,
    },
)

PROFILES = {
    "standard": STANDARD,
    "tiny": TINY,
    "tiny-anisotropic": TINY_ANISOTROPIC,
    "general": GENERAL,
    "general-anisotropic": GENERAL_ANISOTROPIC,
    "snemi3d": SNEMI3D,
}
