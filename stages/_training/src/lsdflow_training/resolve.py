"""From the experiment file to a Recipe: profile values for what is left out, lengths to nm, shapes checked."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, TypeVar

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.checkpoint import Bundle, Kind, UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_network import shapes
from lsdflow_training.config import TrainingConfig
from lsdflow_training.profiles import PROFILES, Profile
from lsdflow_training.recipe import Augmentation, Recipe, Schedules, Shapes, Targets

T = TypeVar("T")
ANISOTROPY_FROM = 2.0
OUTPUTS: dict[Kind, dict[str, int]] = {
    "lsd": {"lsds": 10},
    "acrlsd": {"affs": 3},
    "mtlsd": {"lsds": 10, "affs": 3},
    "affinities": {"affs": 3},
}


def resolve_recipe(
    experiment: Experiment,
    config: TrainingConfig,
    stage: str,
    kind: Kind,
    *,
    voxel_size_nm: Nm3,
    lsd: Bundle | None,
) -> Recipe:
    """The complete recipe of a training.

    lsd: the LSD bundle of an acrlsd training.  Raises ConfigError for shapes the network cannot take.
    """
    profile = PROFILES[experiment.common.profile]
    unet = _unet(config, profile, kind)
    anisotropic = max(voxel_size_nm) / min(voxel_size_nm) > ANISOTROPY_FROM
    workers, threads = _workers_and_threads(config)
    return Recipe(
        stage=stage,
        kind=kind,
        unet=unet,
        outputs=OUTPUTS[kind],
        shapes=_shapes(config, profile, unet, lsd),
        predict_input_vox=_predict_input(config, profile, unet),
        targets=_targets(config, profile, kind, voxel_size_nm, lsd),
        augmentation=_augmentation(config, profile, anisotropic),
        schedules=_schedules(config, profile, kind),
        seed=experiment.common.seed,
        min_masked=config.min_masked,
        validation_fraction=_or(config.validation_fraction, profile.validation_fraction),
        num_workers=workers,
        cache_size=config.cache_size,
        threads=threads,
        device=choose_device(experiment.compute.device),
        precision=config.precision,
    )


def training_parameters(recipe: Recipe) -> dict[str, Any]:
    """What the result of a training depends on, for its key; not how long it is trained or what is kept."""
    everything = dataclasses.asdict(recipe)
    for key in ("num_workers", "cache_size", "threads", "device", "precision", "predict_input_vox"):
        del everything[key]
    how = everything.pop("schedules")
    everything["schedules"] = {key: how[key] for key in ("learning_rate", "schedule", "betas")}
    everything["unet"] = recipe.unet.model_dump()
    return everything


def choose_device(wanted: str) -> str:
    """auto -> cuda if there is one, else cpu; ConfigError for a GPU that is not there."""
    if wanted == "cpu":
        return wanted
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "there is no GPU here", where="compute.device", wanted=wanted, found="no CUDA device", hint='use "auto"'
        )
    return wanted


def _raw_input(lsd: Bundle, unet: UNetSpec, affinity_input_vox: Vox3) -> Vox3:
    """Raw input of the LSD network whose LSDs are this input of the affinity network."""
    from lsdflow_network.composition import chain_input_for

    return chain_input_for(lsd.unet, unet, affinity_input_vox)


def available_cores() -> int:
    """Cores this process may use: SLURM's count, the CPU affinity, and the cgroup's quota, whichever is smallest."""
    counts = [len(os.sched_getaffinity(0))]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdigit() and int(slurm) > 0:
        counts.append(int(slurm))
    quota = _cgroup_quota()
    if quota is not None:
        counts.append(max(1, math.floor(quota)))
    return min(counts)


def _cgroup_quota() -> float | None:
    """Cores granted by the cgroup (version 2 or 1), None without a limit."""
    try:
        maximum, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if maximum == "max" else int(maximum) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return quota / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii")) if quota > 0 else None
    except (OSError, ValueError):
        return None


def _workers_and_threads(config: TrainingConfig) -> tuple[int, int]:
    cores = available_cores()
    return _or(config.num_workers, max(1, min(cores // 2, 10))), _or(config.threads, cores)


def _unet(config: TrainingConfig, profile: Profile, kind: Kind) -> UNetSpec:
    return UNetSpec(
        in_channels=11 if kind == "acrlsd" else 1,
        num_fmaps=_or(config.num_fmaps, profile.num_fmaps),
        fmap_inc_factor=_or(config.fmap_inc_factor, profile.fmap_inc_factor),
        downsample_factors=_or(config.downsample_factors, profile.downsample_factors),
    )


def _shapes(config: TrainingConfig, profile: Profile, unet: UNetSpec, lsd: Bundle | None) -> Shapes:
    network_input = _or(config.input_shape_vox, profile.input_shape_vox)
    output = shapes.output_shape_vox(unet, network_input)
    raw = network_input if lsd is None else _raw_input(lsd, unet, network_input)
    return Shapes(raw_vox=raw, network_input_vox=network_input, output_vox=output)


def _predict_input(config: TrainingConfig, profile: Profile, unet: UNetSpec) -> Vox3:
    if config.predict_input_shape_vox is not None:
        shapes.output_shape_vox(unet, config.predict_input_shape_vox)
        return config.predict_input_shape_vox
    return shapes.nearest_valid_input_shapes(unet, profile.predict_input_shape_vox)[1]


def _targets(config: TrainingConfig, profile: Profile, kind: Kind, voxel_size_nm: Nm3, lsd: Bundle | None) -> Targets:
    return Targets(
        lsds="lsds" in OUTPUTS[kind],
        affinities="affs" in OUTPUTS[kind],
        sigma_nm=_sigma_nm(config, voxel_size_nm, lsd),
        voxel_size_nm=voxel_size_nm,
        lsd_downsample=config.lsd_downsample,
        lsd_engine=config.lsd_engine,
        neighborhood=AFFINITY_NEIGHBORHOOD,
        grow_boundary_vox=_or(config.grow_boundary_vox, profile.grow_boundary_vox),
        train_background=config.train_background,
        balance_labels=_or(config.balance_labels, profile.balance_labels),
    )


def _sigma_nm(config: TrainingConfig, voxel_size_nm: Nm3, lsd: Bundle | None) -> Nm3:
    """As given; else that of the LSD bundle; else ten of the shortest voxel edges."""
    if config.sigma is not None:
        return config.sigma.to_nm(voxel_size_nm)
    if lsd is not None and lsd.sigma_nm is not None:
        return lsd.sigma_nm
    edge = 10 * min(voxel_size_nm)
    return edge, edge, edge


def _augmentation(config: TrainingConfig, profile: Profile, anisotropic: bool) -> Augmentation:
    return Augmentation(
        elastic_probability=_or(config.elastic_probability, profile.elastic_probability),
        control_point_spacing_vox=(4, 40, 40) if anisotropic else (40, 40, 40),
        jitter_sigma_vox=(0, 2, 2) if anisotropic else (2, 2, 2),
        rotation_max_rad=math.pi / 2,
        slip_probability=0.01,
        shift_probability=0.01,
        max_misalign_vox=1,
        subsample=8,
        intensity_scale=(0.9, 1.1),
        intensity_shift=(-0.1, 0.1),
        anisotropic=anisotropic,
    )


def _schedules(config: TrainingConfig, profile: Profile, kind: Kind) -> Schedules:
    maximum = _or(config.max_iteration, profile.max_iteration[kind])
    return Schedules(
        max_iteration=maximum,
        max_minutes=config.max_minutes if config.max_minutes is not None else profile.max_minutes,
        learning_rate=_or(config.learning_rate, profile.learning_rate),
        schedule=_or(config.schedule, profile.schedule),
        warmup_iterations=50,
        betas=(0.95, 0.999),
        checkpoint_every=_or(config.checkpoint_every, profile.checkpoint_every),
        keep_checkpoints=_or(config.keep_checkpoints, profile.keep_checkpoints),
        snapshot_every=_or(config.snapshot_every, profile.snapshot_every),
        validation_every=_or(config.validation_every, profile.validation_every),
        validation_patches=config.validation_patches,
        profile_every=1000,
    )


def _or(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given
