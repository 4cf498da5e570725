"""The settings of a training, fully resolved: all options have values, lengths are in voxels or nm. See resolve.py.

A field with a default was added after the first trainings: it is part of a training's key only if it differs from that.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lsdflow_contract.checkpoint import Bundle, Kind, UNetSpec
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_contract.manifest import Writer
from lsdflow_network import shapes

# of the settings: they do not affect what is learnt
SAME_RESULT = (
    "num_workers", "cache_size", "threads", "device", "precision", "predict_input_vox", "distribution", "patience",
    "records",
)  # fmt: skip
Schedule = Literal["constant", "one_cycle"]
DataPath = Literal["gunpowder", "gpu"]
WARMUP_ITERATIONS = 50


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


@dataclass(frozen=True)
class Schedules:
    """How long and how fast to train, and what is kept.

    schedule_iterations: after which one_cycle ends, None = max_iteration. keep_best: checkpoints by validation loss.
    """

    max_iteration: int
    max_minutes: float | None
    learning_rate: float
    schedule: Schedule
    warmup_iterations: int
    schedule_iterations: int | None
    betas: tuple[float, float]
    checkpoint_every: int
    keep_checkpoints: int
    keep_best: int
    snapshot_every: int
    validation_every: int
    validation_patches: int
    profile_every: int

    def parameters(self) -> dict[str, Any]:
        """What affects the result; options that were added later only where they differ from their default."""
        kept: dict[str, Any] = {"learning_rate": self.learning_rate, "schedule": self.schedule, "betas": self.betas}
        if self.schedule == "one_cycle":
            cycle = {"warmup_iterations": self.warmup_iterations, "schedule_iterations": self.schedule_iterations}
            usual = {"warmup_iterations": WARMUP_ITERATIONS, "schedule_iterations": None}
            kept |= {name: value for name, value in cycle.items() if value != usual[name]}
        return kept

    def has_snapshot(self, iteration: int) -> bool:
        """Whether a step is known to leave a snapshot: 1, max_iteration, every `snapshot_every`-th."""
        return iteration in (1, self.max_iteration) or iteration % self.snapshot_every == 0


@dataclass(frozen=True)
class StepOptions:
    """How gradients become a step: `accumulate` forward passes of `batch_size` patches in each process.

    effective_batch: patches per step in all processes together.
    """

    batch_size: int = 1
    accumulate: int = 1
    effective_batch: int = 1
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    clip_gradient: float | None = None
    checkpoint_activations: bool = False

    @property
    def patches(self) -> int:
        """Patches of each process in a step."""
        return self.batch_size * self.accumulate

    def parameters(self) -> dict[str, Any]:
        """Options that affect the result and differ from their default; of the batch only its effective size counts."""
        same = ("batch_size", "accumulate", "checkpoint_activations")
        return {name: value for name, value in _without_defaults(self).items() if name not in same}


@dataclass(frozen=True)
class Distribution:
    """How many processes this node starts, and how all of them share the training. Does not affect what is learnt."""

    processes: int = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    reshard: Literal["full", "grad_op", "hybrid", "none"] = "full"
    min_num_params: int = 1_000_000
    cpu_offload: bool = False
    peer_timeout_s: float = 240.0

    @property
    def sharded(self) -> bool:
        """True if each process holds only a share of the weights."""
        return self.strategy == "fsdp" and self.reshard != "none"


@dataclass(frozen=True)
class Records:
    """Records for users beside the curves; they change no result, so they are not part of a training's key.

    profile_steps: 0 = none. mlflow: "local" or a URI, None = no. experiment: its name, shown in MLflow.
    """

    profile_steps: int = 0
    mlflow: str | None = None
    experiment: str = ""


@dataclass(frozen=True)
class InitialWeights:
    """A bundle's folder, and the sha256 of its weights."""

    folder: Path
    sha256: str


@dataclass(frozen=True)
class TrainingSettings:
    """Everything a training needs apart from its volumes and its folder.

    patience: iterations without a better validation loss that end the training, None = never. average_decay: of the
    moving average of the weights, None = no average.
    """

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
    patience: int | None = None
    average_decay: float | None = None
    pipeline: DataPath = "gunpowder"
    records: Records = field(default_factory=Records)
    initial: InitialWeights | None = None


def training_parameters(settings: TrainingSettings) -> dict[str, Any]:
    """The parameters that the result of a training depends on, for its key; not its length or what is kept.

    Options count only if they differ from their default, so that a new one leaves the keys of trainings without it.
    """
    whole = dataclasses.asdict(settings)
    optional = {
        "step": settings.step.parameters() or None,
        "pipeline": None if settings.pipeline == "gunpowder" else settings.pipeline,
        "average_decay": settings.average_decay,
        "initial_weights": None if settings.initial is None else settings.initial.sha256,
    }
    return {
        **{name: value for name, value in whole.items() if name not in (*SAME_RESULT, *optional, "initial")},
        "unet": settings.unet.model_dump(),
        "targets": _without_defaults(settings.targets),
        "augmentation": _without_defaults(settings.augmentation),
        "schedules": settings.schedules.parameters(),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _without_defaults(part: Augmentation | Targets | StepOptions) -> dict[str, Any]:
    return {
        field.name: value for field in dataclasses.fields(part) if (value := getattr(part, field.name)) != field.default
    }


def make_bundle(
    settings: TrainingSettings, iteration: int, training_key: str, validation_loss: float | None, lsd_sha256: str | None
) -> Bundle:
    """Bundle of an iteration; its shapes are those of the trained network itself (acrlsd: the one with 11 channels)."""
    targets = settings.targets
    return Bundle(
        writer=Writer.of(settings.stage),
        kind=settings.kind,
        iteration=iteration,
        unet=settings.unet,
        outputs=settings.outputs,
        neighborhood=targets.neighborhood if targets.affinities else (),
        train_input_shape_vox=settings.shapes.network_input_vox,
        train_output_shape_vox=settings.shapes.output_vox,
        predict_input_shape_vox=settings.predict_input_vox,
        predict_output_shape_vox=shapes.output_shape_vox(settings.unet, settings.predict_input_vox),
        voxel_size_nm=targets.voxel_size_nm,
        sigma_nm=targets.sigma_nm if settings.kind != "affinities" else None,
        lsd_bundle_sha256=lsd_sha256,
        training_key=training_key,
        validation_loss=validation_loss,
    )
