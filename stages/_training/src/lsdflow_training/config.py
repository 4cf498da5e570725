"""The options of the experiment file that train-lsd and train-acrlsd share.

Omitted options come from the profile of the experiment: see profiles.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, field_validator

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, is_neighborhood
from lsdflow_contract.geometry import PositiveLengths, Vox3
from lsdflow_contract.model import StrictModel
from lsdflow_training.settings import WARMUP_ITERATIONS, DataPath

Probability = Annotated[float, Field(ge=0, le=1)] | None
Factor = Annotated[int, Field(ge=1, le=8)]
Factors = Annotated[tuple[tuple[Factor, Factor, Factor], ...], Field(max_length=6)]
Edge = Annotated[int, Field(ge=1, le=4096)]
Edges = tuple[Edge, Edge, Edge]
# A level with this many feature maps already has billions of weights.
MOST_FMAPS = 16_384
MOST_PROCESSES = 256


class TrainingConfig(StrictModel):
    """Options for what is learnt from which volumes, for how long, how fast, in which processes, and what is kept.

    With the defaults, a training is one process, ends at its last iteration, and stores its last weights.
    """

    backend: Literal["torch", "tensorflow"] = Field(
        default="torch",
        description="framework for training; tensorflow trains the same networks and writes the same bundle, if it is "
        "installed",
    )
    volumes: tuple[str, ...] = Field(default=(), description="names of the training volumes to use; empty = all")
    probabilities: tuple[float, ...] = Field(
        default=(),
        description="how often each volume is sampled: one number per volume, with sum 1; empty = as in the tables of "
        "prepare",
    )
    sigma: PositiveLengths | None = Field(
        default=None,
        description='standard deviation of the Gaussian that defines LSDs, for example "80 nm" (default: 10 times the '
        "shortest voxel edge)",
    )
    lsd_downsample: int = Field(default=2, ge=1, le=4, description="compute LSD targets from every n-th voxel only")
    lsd_engine: Literal["lsdflow", "lsds"] = Field(
        default="lsdflow",
        description="what computes LSD targets: lsdflow, or the published package lsds (much slower, must be "
        "installed)",
    )
    grow_boundary_vox: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="width of the background added between neurons, voxels (default: from the profile)",
    )
    train_background: bool = Field(
        default=False,
        description="true: LSDs are trained to be 0 on boundaries and background; false: they are not trained there",
    )
    balance_labels: bool | None = Field(
        default=None,
        description="give affinities 0 and 1 equal weight in each patch, as published (default: from the profile)",
    )
    min_masked: float = Field(
        default=0.5, ge=0, lt=1, description="smallest fraction of a patch that must not be ignored"
    )
    sparse_labels: bool = Field(
        default=False,
        description="only a few voxels are labelled: all others are ignored, and patches are chosen around labelled "
        "voxels (min_masked is not used)",
    )
    ignore_ids: tuple[int, ...] = Field(
        default=(), description="labels that are neither neuron nor background, for example glia: never trained"
    )
    initial_weights: str | None = Field(
        default=None,
        description="start from the weights of this checkpoint of the same network: its folder, or train/<stage> of "
        "another experiment for the best one (default: random weights)",
    )
    num_fmaps: int | None = Field(
        default=None, ge=1, le=1024, description="feature maps of the finest level (default: from the profile)"
    )
    fmap_inc_factor: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description="factor by which feature maps grow from level to level (default: from the profile)",
    )
    downsample_factors: Factors | None = Field(
        default=None, description="pooling factors z,y,x of each level (default: from the profile)"
    )
    input_shape_vox: Edges | None = Field(
        default=None, description="input shape of the network in training, z,y,x voxels (default: from the profile)"
    )
    predict_input_shape_vox: Edges | None = Field(
        default=None, description="input shape in prediction, z,y,x voxels (default: from the profile)"
    )
    max_iteration: int | None = Field(
        default=None, ge=1, description="total number of iterations, over all runs (default: from the profile)"
    )
    max_minutes: float | None = Field(
        default=None,
        gt=0,
        description="stop after this many minutes, over all runs; one_cycle then ends in this time, so "
        "runs of different speed give different weights (default: from the profile, or never)",
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=1, description="learning rate of Adam (default: from the profile)"
    )
    schedule: Literal["constant", "one_cycle"] | None = Field(
        default=None, description="learning rate: constant, or warm-up and cosine decay (default: from the profile)"
    )
    warmup_iterations: int = Field(
        default=WARMUP_ITERATIONS, ge=0, description="one_cycle: iterations in which the learning rate rises"
    )
    schedule_iterations: int | None = Field(
        default=None,
        ge=1,
        description="one_cycle: iterations of the whole cycle; after them the learning rate stays at 1 % (default: "
        "max_iteration)",
    )
    elastic_probability: float | None = Field(
        default=None, ge=0, le=1, description="probability of each elastic deformation (default: from the profile)"
    )
    slip_probability: Probability = Field(
        default=None, description="fraction of sections that are shifted sideways (default: from the profile)"
    )
    shift_probability: Probability = Field(
        default=None,
        description="fraction of sections that are shifted sideways together with all that follow (default: from the "
        "profile)",
    )
    max_misalign_vox: int | None = Field(
        default=None, ge=0, description="largest sideways shift in y and x, voxels (default: from the profile)"
    )
    intensity_per_section: bool | None = Field(
        default=None,
        description="change intensities separately for each section instead of each patch (default: from the profile)",
    )
    gamma: tuple[PositiveFloat, PositiveFloat] | None = Field(
        default=None,
        description="range of the exponent applied to intensities; 1, 1 = unchanged (default: from the profile)",
    )
    noise_probability: Probability = Field(
        default=None, description="fraction of patches with added noise (default: from the profile)"
    )
    noise_std: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="standard deviation of the Gaussian noise, where white is 1 (default: from the profile)",
    )
    blur_probability: Probability = Field(
        default=None,
        description="fraction of patches (anisotropic volumes: of sections) that are blurred (default: from the "
        "profile)",
    )
    missing_section_probability: Probability = Field(
        default=None, description="fraction of sections that are made black (default: from the profile)"
    )
    low_contrast_probability: Probability = Field(
        default=None, description="fraction of sections with low contrast (default: from the profile)"
    )
    artifact_probability: Probability = Field(
        default=None,
        description="fraction of sections that are partly covered by another piece of the volume (default: from the "
        "profile)",
    )
    repeated_section_probability: Probability = Field(
        default=None,
        description="fraction of sections that are replaced by their neighbour (default: from the profile)",
    )
    validation_fraction: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="fraction of each volume, at its end in z, that is held out for validation (default: from the "
        "profile; tiny: 0.1 of volumes that are deep enough, else 0)",
    )
    validation_patches: int = Field(
        default=8, ge=1, le=10_000, description="number of fixed patches over which the validation loss is averaged"
    )
    validation_every: int | None = Field(
        default=None, ge=1, description="iterations between validations (default: from the profile)"
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="iterations between checkpoints (default: from the profile)"
    )
    keep_checkpoints: int | None = Field(
        default=None,
        ge=0,
        description="how many of the newest checkpoints are kept; 0 = all (default: from the profile)",
    )
    keep_best: int = Field(
        default=1,
        ge=1,
        description="how many of the checkpoints with the lowest validation loss are kept besides the newest",
    )
    snapshot_every: int | None = Field(
        default=None,
        ge=1,
        description="iterations between snapshots; the first and the last one have one (default: from the profile)",
    )
    num_workers: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="processes that prepare training patches; 0 = none (default: half of the cores; none with "
        'pipeline = "gpu", where they are threads that read volumes which do not fit in memory)',
    )
    # Bounds the host's memory: large patches of many channels need fewer of them at once.
    cache_size: int = Field(default=40, ge=1, le=10_000, description="number of patches prepared in advance")
    pipeline: DataPath = Field(
        default="gunpowder",
        description="gunpowder: num_workers processes prepare the patches; gpu: the training device does, from volumes "
        "in its memory (same result up to rounding), and needs no workers",
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads of the training (default: all cores)"
    )

    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: bf16 if the device supports it, else fp16 with scaled losses (GPUs) or float32 (CPUs)",
    )
    batch_size: int = Field(
        default=1, ge=1, le=1000, description="patches of one forward pass of a process; each needs memory"
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="forward passes of a process in a step, whose gradients are averaged: a larger batch in the same "
        "memory",
    )
    optimizer: Literal["adam", "adamw"] = Field(
        default="adam", description="adam, or adamw with decoupled weight decay"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="weight decay of the optimizer")
    clip_gradient: float | None = Field(
        default=None, gt=0, description="largest norm of the gradient (default: not limited)"
    )
    checkpoint_activations: bool = Field(
        default=False,
        description="recompute the levels of the network in the backward pass: less memory, same gradients",
    )
    processes: Literal["auto"] | int = Field(
        default=1, description="training processes on each node; auto = one per GPU"
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="with several processes: each holds the whole network (ddp) or a share of it (fsdp)"
    )
    fsdp_reshard: Literal["full", "grad_op", "hybrid", "none"] = Field(
        default="full",
        description="fsdp: when a process frees the shares of the others: after each use (full), after the step "
        "(grad_op); hybrid: full within a node, each node has the whole network; none: never, as ddp",
    )
    fsdp_min_num_params: int = Field(
        default=1_000_000, ge=1, description="fsdp: levels with at least this many parameters are sharded separately"
    )
    fsdp_cpu_offload: bool = Field(
        default=False, description="fsdp: keep shares and optimizer state in the host's memory (GPUs only)"
    )
    peer_timeout_s: float = Field(
        default=240.0,
        gt=0,
        le=1e6,
        description="a process that waits this many seconds for another one ends with exit code 75 and can be resumed",
    )
    patience_iterations: int | None = Field(
        default=None,
        ge=1,
        description="early stopping: end the training when the validation loss has not improved for this many "
        "iterations (default: never)",
    )
    average_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="save the moving average of the weights with this decay, for example 0.999, instead of the last "
        "weights (default: last weights)",
    )
    profile_steps: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="number of steps that torch.profiler records, after two steps of warm-up; 0 = none",
    )
    mlflow: str | None = Field(
        default=None,
        description='also log to MLflow, if installed: "local" (train/mlruns), http(s)://..., file:///... (default: do'
        " not)",
    )

    @field_validator("processes")
    @classmethod
    def _at_least_one(cls, value: str | int) -> str | int:
        if isinstance(value, int) and not 1 <= value <= MOST_PROCESSES:
            msg = f"processes is 1 to {MOST_PROCESSES}, or auto"
            raise ValueError(msg)
        return value

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


class AffinityTrainingConfig(TrainingConfig):
    """[train-acrlsd]: also which affinities are learnt, and with which LSD checkpoint (mode acrlsd)."""

    neighborhood: tuple[Vox3, ...] = Field(
        default=AFFINITY_NEIGHBORHOOD,
        description="offsets z,y,x, in voxels, of the affinities to learn and predict: the three nearest neighbours "
        "first, then any others (for the mutex watershed)",
    )

    lsd_checkpoint: Literal["best"] | int = Field(
        default="best", description="LSD network for mode acrlsd: best, or an iteration of train-lsd"
    )

    @field_validator("neighborhood")
    @classmethod
    def _nearest_first(cls, offsets: tuple[Vox3, ...]) -> tuple[Vox3, ...]:
        if not is_neighborhood(offsets):
            nearest = ", ".join(str(list(offset)) for offset in AFFINITY_NEIGHBORHOOD)
            msg = f"the neighborhood begins with {nearest}; other offsets follow, none (nor its opposite) twice"
            raise ValueError(msg)
        return offsets
