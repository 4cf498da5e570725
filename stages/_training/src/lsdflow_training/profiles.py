"""What a profile stands for: "standard" is the published training, "tiny" learns in minutes on two CPU cores."""

from __future__ import annotations

from dataclasses import dataclass

from lsdflow_contract.checkpoint import Kind
from lsdflow_contract.geometry import Vox3
from lsdflow_training.recipe import Schedule


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
    validation_fraction=0.0,
    validation_every=250,
    checkpoint_every=250,
    keep_checkpoints=2,
    snapshot_every=500,
)

PROFILES = {"standard": STANDARD, "tiny": TINY}
