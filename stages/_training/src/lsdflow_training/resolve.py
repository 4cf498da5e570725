"""Make the settings of a training from the experiment file: profile values for omitted options, lengths in nm, checked
shapes.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import TypeVar

from lsdflow_command.machine import available_cores
from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.checkpoint import (
    BUNDLE_JSON,
    OUTPUTS,
    Bundle,
    Kind,
    UNetSpec,
    bundle_folder,
    outputs_of,
    read_best,
    read_bundle,
)
from lsdflow_contract.errors import ConfigError, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_network import shapes
from lsdflow_network.chain import chain_input_for
from lsdflow_network.devices import gpu_count, require_gpu, require_precision
from lsdflow_training.config import MOST_FMAPS, AffinityTrainingConfig, TrainingConfig
from lsdflow_training.mlflow_log import checked_uri
from lsdflow_training.processes.ranks import Ranks, ranks_of_environment
from lsdflow_training.profiles import PROFILES, Profile
from lsdflow_training.settings import (
    Augmentation,
    DataPath,
    Distribution,
    InitialWeights,
    Records,
    Schedules,
    Shapes,
    StepOptions,
    Targets,
    TrainingSettings,
)

T = TypeVar("T")
ANISOTROPY_FROM = 2.0
DAMAGED_SECTIONS = (
    "missing_section_probability", "low_contrast_probability", "artifact_probability", "repeated_section_probability",
)  # fmt: skip


def resolve_settings(
    experiment: Experiment,
    config: TrainingConfig,
    stage: str,
    kind: Kind,
    *,
    voxel_size_nm: Nm3,
    lsd: Bundle | None,
    device: str | None = None,
    sections: int | None = None,
) -> TrainingSettings:
    """The complete settings of one training.

    lsd: the LSD bundle of an acrlsd training. device: None = that of [compute]. sections: labelled ones of the thinnest
    volume; None = not known.  Raises ConfigError for shapes that the network does not support.
    """
    profile = PROFILES[experiment.common.profile]
    unet = _unet(config, profile, kind)
    anisotropic = max(voxel_size_nm) / min(voxel_size_nm) > ANISOTROPY_FROM
    device, ranks = device or choose_device(experiment.compute.device, config.backend), ranks_of_environment(os.environ)
    distribution = resolve_distribution(config, device, ranks)
    shapes_vox = _shapes(config, profile, unet, lsd)
    # each task of SLURM has its own cores; processes of torchrun share the cores of their task
    sharing = distribution.processes * (ranks.local_world_size if "RANK" in os.environ else 1)
    workers, threads = _workers_and_threads(config, sharing)
    outputs = outputs_of(kind, _neighborhood(config))
    return TrainingSettings(
        stage=stage,
        kind=kind,
        unet=unet,
        outputs=outputs,
        shapes=shapes_vox,
        predict_input_vox=_predict_input(config, profile, unet),
        targets=_targets(config, profile, kind, voxel_size_nm, lsd),
        augmentation=_augmentation(config, profile, anisotropic),
        schedules=_schedules(config, profile, kind),
        seed=experiment.common.seed,
        min_masked=0.0 if config.sparse_labels else config.min_masked,
        validation_fraction=_held_out(config, profile, sections, shapes_vox.output_vox[0]),
        num_workers=workers,
        cache_size=config.cache_size,
        threads=threads,
        device=device,
        precision=config.precision,
        step=_step(config, ranks.world_size * distribution.processes),
        distribution=distribution,
        patience=config.patience_iterations,
        average_decay=config.average_decay,
        records=Records(config.profile_steps, checked_uri(config.mlflow), experiment.common.name),
        pipeline=checked_data_path(config),
        initial=None
        if config.initial_weights is None
        else find_initial_weights(experiment.resolve(config.initial_weights), unet, outputs),
    )


def _held_out(config: TrainingConfig, profile: Profile, sections: int | None, output_sections: int) -> float:
    """The fraction that is set, or that of the profile; 0 if that would be too few sections, or leave too few."""
    if config.validation_fraction is not None or sections is None:
        return _or(config.validation_fraction, profile.validation_fraction)
    if profile.fewest_held_out > 1:
        held_out = round(sections * profile.validation_fraction)
        if held_out < profile.fewest_held_out or sections - held_out < output_sections:
            return 0.0
    return profile.validation_fraction


def _step(config: TrainingConfig, processes: int) -> StepOptions:
    return StepOptions(
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        effective_batch=config.batch_size * config.accumulate * processes,
        optimizer=config.optimizer,
        weight_decay=config.weight_decay,
        clip_gradient=config.clip_gradient,
        checkpoint_activations=config.checkpoint_activations,
    )


def choose_device(wanted: str, backend: str) -> str:
    """auto -> cuda if the backend has a GPU, else cpu. Raises ConfigError for a GPU that cannot be used."""
    if wanted == "cpu":
        return wanted
    count = gpu_count(framework=backend)
    require_gpu(wanted, count)
    return wanted if wanted != "auto" else "cuda" if count else "cpu"


def _workers_and_threads(config: TrainingConfig, sharing: int) -> tuple[int, int]:
    """Workers and threads of each of the processes that share these cores."""
    cores = max(1, available_cores() // sharing)
    if config.pipeline == "gpu":
        return _or(config.num_workers, 0), _or(config.threads, cores)
    workers = _or(config.num_workers, max(1, min(cores // 2, 10)))
    if config.mlflow is not None:  # its client uses the random numbers of this process, in a thread
        workers = max(1, workers)
    return workers, _or(config.threads, cores)


def _unet(config: TrainingConfig, profile: Profile, kind: Kind) -> UNetSpec:
    # The kernels of a profile are only valid for its own levels.
    own = config.downsample_factors is None
    spec = UNetSpec(
        in_channels=11 if kind == "acrlsd" else 1,
        num_fmaps=_or(config.num_fmaps, profile.num_fmaps),
        fmap_inc_factor=_or(config.fmap_inc_factor, profile.fmap_inc_factor),
        downsample_factors=_or(config.downsample_factors, profile.downsample_factors),
        kernels_down=profile.kernels_down if own else None,
        kernels_up=profile.kernels_up if own else None,
    )
    deepest = spec.fmaps_of(len(spec.downsample_factors))
    if deepest > MOST_FMAPS:
        raise ConfigError(
            "the network has too many feature maps",
            where="num_fmaps, fmap_inc_factor, downsample_factors",
            wanted=f"at most {MOST_FMAPS} at the deepest level",
            found=f"{spec.num_fmaps} x {spec.fmap_inc_factor}^{len(spec.downsample_factors)} = {deepest}",
            fix="the published networks have 12 feature maps, 6 times more at each of 3 levels",
        )
    return spec


def _shapes(config: TrainingConfig, profile: Profile, unet: UNetSpec, lsd: Bundle | None) -> Shapes:
    network_input = _or(config.input_shape_vox, profile.input_shape_vox)
    output = _output_vox(unet, network_input, "input_shape_vox")
    raw = network_input if lsd is None else chain_input_for(lsd.unet, unet, network_input)
    return Shapes(raw_vox=raw, network_input_vox=network_input, output_vox=output)


def _output_vox(unet: UNetSpec, input_vox: Vox3, field: str) -> Vox3:
    """The output shape of a network. Raises ConfigError (78) that names the field and the nearest valid shapes."""
    try:
        return shapes.output_shape_vox(unet, input_vox)
    except ConfigError as error:
        error.where = f"{field}, {error.where}"
        raise


def _predict_input(config: TrainingConfig, profile: Profile, unet: UNetSpec) -> Vox3:
    if config.predict_input_shape_vox is not None:
        _output_vox(unet, config.predict_input_shape_vox, "predict_input_shape_vox")
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
        neighborhood=_neighborhood(config),
        grow_boundary_vox=_or(config.grow_boundary_vox, profile.grow_boundary_vox),
        train_background=config.train_background,
        balance_labels=_or(config.balance_labels, profile.balance_labels),
        ignore_ids=tuple(sorted(set(config.ignore_ids))),
        sparse_labels=config.sparse_labels,
    )


def _neighborhood(config: TrainingConfig) -> tuple[Vox3, ...]:
    return config.neighborhood if isinstance(config, AffinityTrainingConfig) else AFFINITY_NEIGHBORHOOD


def _sigma_nm(config: TrainingConfig, voxel_size_nm: Nm3, lsd: Bundle | None) -> Nm3:
    """The given sigma; else that of the LSD bundle; else ten times the shortest voxel edge."""
    if config.sigma is not None:
        return config.sigma.to_nm(voxel_size_nm)
    if lsd is not None and lsd.sigma_nm is not None:
        return lsd.sigma_nm
    edge = 10 * min(voxel_size_nm)
    return edge, edge, edge


def _augmentation(config: TrainingConfig, profile: Profile, anisotropic: bool) -> Augmentation:
    published = Augmentation(
        elastic_probability=profile.elastic_probability,
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
    names = {field.name for field in dataclasses.fields(Augmentation)} & TrainingConfig.model_fields.keys()
    given = {name: value for name in names if (value := getattr(config, name)) is not None}
    augmentation = dataclasses.replace(published, **{**profile.augmentation, **given})
    damaged = sum(getattr(augmentation, name) for name in DAMAGED_SECTIONS)
    if damaged > 1:
        raise ConfigError(
            "a section can be damaged in one way only",
            where=", ".join(DAMAGED_SECTIONS),
            wanted="a sum of at most 1",
            found=f"{damaged:g}",
        )
    return augmentation


def _schedules(config: TrainingConfig, profile: Profile, kind: Kind) -> Schedules:
    maximum = _or(config.max_iteration, profile.max_iteration[kind])
    return Schedules(
        max_iteration=maximum,
        max_minutes=config.max_minutes if config.max_minutes is not None else profile.max_minutes,
        learning_rate=_or(config.learning_rate, profile.learning_rate),
        schedule=_or(config.schedule, profile.schedule),
        warmup_iterations=config.warmup_iterations,
        schedule_iterations=config.schedule_iterations,
        betas=(0.95, 0.999),
        checkpoint_every=_or(config.checkpoint_every, profile.checkpoint_every),
        keep_checkpoints=_or(config.keep_checkpoints, profile.keep_checkpoints),
        keep_best=config.keep_best,
        snapshot_every=_or(config.snapshot_every, profile.snapshot_every),
        validation_every=_or(config.validation_every, profile.validation_every),
        validation_patches=config.validation_patches,
        profile_every=1000,
    )


def _or(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given


def checked_data_path(config: TrainingConfig) -> DataPath:
    """The data path. Raises ConfigError for an option that only gunpowder supports."""
    if config.pipeline != "gunpowder" and config.lsd_engine != "lsdflow":
        raise ConfigError(
            'pipeline = "gpu" does not do all that this training asks for',
            where="pipeline",
            wanted="this option at its default",
            found="lsd_engine",
            fix='use pipeline = "gunpowder"',
        )
    return config.pipeline


def resolve_distribution(config: TrainingConfig, device: str, ranks: Ranks) -> Distribution:
    """Processes and strategy. Raises ConfigError for what the device does not support."""
    processes = 1
    if not ranks.started_locally:
        processes = _gpus(device, config.backend) if config.processes == "auto" else config.processes
    if config.precision == "fp16" and device == "cpu":
        raise ConfigError(
            "fp16 trains on GPUs only", where="precision", wanted="auto, float32 or bf16", found=f"fp16 on {device}"
        )
    require_precision(device, config.precision, "precision")
    if config.fsdp_cpu_offload and device == "cpu":
        raise ConfigError("without a GPU there is nothing to offload", where="fsdp_cpu_offload", found=f"on {device}")
    return Distribution(
        processes=processes,
        strategy=config.strategy,
        reshard=config.fsdp_reshard,
        min_num_params=config.fsdp_min_num_params,
        cpu_offload=config.fsdp_cpu_offload,
        peer_timeout_s=config.peer_timeout_s,
    )


def _gpus(device: str, backend: str) -> int:
    """One process per GPU; one if there is no GPU, or if one GPU is named."""
    if device != "cuda":
        return 1
    return max(1, gpu_count(framework=backend))


def find_initial_weights(place: Path, unet: UNetSpec, outputs: dict[str, int]) -> InitialWeights:
    """The weights of a bundle (its folder, or train/<stage> of an experiment for the best one) for this network.

    Raises MissingInput (66), BadData (65), and ContractMismatch (76) if they are of another network.
    """
    folder = place
    if not (place / BUNDLE_JSON).is_file():
        if not (place / "best.json").is_file():
            raise MissingInput(
                "no weights to begin with",
                where=place,
                wanted=f"the folder of a checkpoint ({BUNDLE_JSON}), or train/<stage> of an experiment (best.json)",
                fix="correct initial_weights",
            )
        folder = bundle_folder(place / "checkpoints", read_best(place / "best.json").iteration)
    bundle = read_bundle(folder)
    _require_same_network(bundle, unet, outputs, folder)
    return InitialWeights(folder, bundle.weights_sha256)


def _require_same_network(bundle: Bundle, unet: UNetSpec, outputs: dict[str, int], folder: Path) -> None:
    found = {**bundle.unet.model_dump(), "outputs": bundle.outputs}
    wanted = {**unet.model_dump(), "outputs": outputs}
    differ = [name for name in wanted if wanted[name] != found[name]]
    if differ:
        raise ContractMismatch(
            "the weights to begin with are those of another network",
            where=folder,
            wanted=", ".join(f"{name} {wanted[name]}" for name in differ),
            found=", ".join(f"{name} {found[name]}" for name in differ),
            fix="set num_fmaps, fmap_inc_factor and downsample_factors as the bundle has them",
        )
