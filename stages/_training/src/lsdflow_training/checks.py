"""Check a training before anything is written: its settings, the metadata of its volumes, optional packages."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from lsdflow_contract.checkpoint import Bundle, Kind
from lsdflow_contract.errors import ConfigError, NotInstalled, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.software import REVISION_VARIABLE
from lsdflow_network.devices import gpu_count
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.volumes import (
    TrainingVolume,
    chosen_volumes,
    common_voxel_size,
    labelled_sections,
    make_sources,
    mask_problems,
    prepared_probabilities,
    source_problems,
)
from lsdflow_training.mlflow_log import mlflow_problems
from lsdflow_training.resolve import choose_device, resolve_settings
from lsdflow_training.settings import TrainingSettings

Known = tuple[Sequence[TrainingVolume], Mapping[str, float]]
T = TypeVar("T")
# Used for checks that do not depend on the voxel size, if it is not known.
ANY_VOXEL_NM: Nm3 = (1.0, 1.0, 1.0)


def training_problems(
    experiment: Experiment, config: TrainingConfig, stage: str, kind: Kind, lsd: Bundle | None = None
) -> list[StageError]:
    """All problems that can be found without writing or training, the first of each kind.

    lsd: the trained or planned LSD network of an acrlsd training.
    """
    problems = _problems(experiment, config, stage, kind, lsd)
    for error in problems:
        if isinstance(error, ConfigError) and error.where.split(" ")[0].rstrip(",") in type(config).model_fields:
            error.where = f"{stage}.{error.where}"
    return problems


def _problems(
    experiment: Experiment, config: TrainingConfig, stage: str, kind: Kind, lsd: Bundle | None
) -> list[StageError]:
    installed = [*tensorflow_problems(config.backend), *mlflow_problems(config.mlflow)]
    problems: list[StageError] = [*installed, *lsds_problems(config.lsd_engine)]
    known, missing = _or_error(lambda: known_volumes(experiment, config))
    size, differ = _or_error(lambda: common_voxel_size(known[0])) if known else (None, None)
    sections = labelled_sections(known[0], read_manifest(experiment.layout, "prepare")) if known else None
    settings, wrong = _or_error(
        lambda: resolve_settings(
            experiment,
            config,
            stage,
            kind,
            voxel_size_nm=size or ANY_VOXEL_NM,
            lsd=lsd,
            device=device_of_jobs(experiment, config.backend),
            sections=sections,
        )
    )
    problems += [error for error in (wrong, missing, differ) if error is not None]
    if settings is None:
        return problems
    if known is None or size is None:
        return [*problems, *shape_problems(settings)]
    sources = make_sources(known[0], config, settings, known[1])
    prepared = read_manifest(experiment.layout, "prepare")
    of_sources = [*source_problems(sources, settings), *mask_problems(sources, settings, prepared)]
    return [*problems, *settings_problems(settings), *of_sources]


def tensorflow_problems(backend: str) -> list[NotInstalled]:
    """An error if this backend is not installed, else []. Imports nothing large."""
    if backend != "tensorflow":
        return []
    missing = [name for name in ("tensorflow", "lsdflow_tensorflow") if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [
        NotInstalled(
            f"this environment has no tensorflow: {' and '.join(missing)} not installed",
            where="backend",
            found='"tensorflow"',
            fix=f'{how_to_get_tensorflow()}; or backend = "torch" (same networks, same bundle)',
        )
    ]


def lsds_problems(lsd_engine: str) -> list[NotInstalled]:
    """An error if this engine of LSD targets needs the package `lsds` and it is not installed, else []."""
    if lsd_engine != "lsds" or importlib.util.find_spec("lsd") is not None:
        return []
    return [
        NotInstalled(
            "this environment does not have the package lsds",
            where="lsd_engine",
            found='"lsds"',
            fix='pip install lsds there, or lsd_engine = "lsdflow" (the same values, faster)',
        )
    ]


def how_to_get_tensorflow() -> str:
    """How to get tensorflow: in an image (images set their revision) use its variant, else set up an environment."""
    if os.environ.get(REVISION_VARIABLE):
        command = "make image STAGE=... BACKEND=tensorflow TORCH=cpu"
        return f"run the image variant <version>-tensorflow of this stage ({command}), pinned in images.env"
    return "make setup-tensorflow, then call .venv/tensorflow/bin/train-lsd or train-acrlsd"


def known_volumes(experiment: Experiment, config: TrainingConfig) -> Known:
    """The chosen training volumes, and how often each is drawn. Raises MissingInput (66) if prepare has not run."""
    probabilities = prepared_probabilities(read_manifest(experiment.layout, "prepare"))
    return chosen_volumes(experiment.layout, config, tuple(probabilities)), probabilities


def settings_problems(settings: TrainingSettings) -> list[StageError]:
    """Settings that contradict each other or do not suit the voxel size."""
    return [*shape_problems(settings), *problems_of([lambda: _check_sigma(settings)])]


def shape_problems(settings: TrainingSettings) -> list[StageError]:
    """Settings that do not suit the shapes of the network, whatever the voxel size."""
    return problems_of([lambda: _check_downsample(settings), lambda: _check_misalignment(settings)])


def device_of_jobs(experiment: Experiment, backend: str) -> str:
    """The device of the run. Jobs of a cluster have GPUs even if the machine that validates has none."""
    wanted = experiment.compute.device
    if experiment.uses_cluster and wanted != "cpu" and not gpu_count(framework=backend):
        return "cuda"
    return choose_device(wanted, backend)


def _check_sigma(settings: TrainingSettings) -> None:
    """Raise ConfigError if sigma is less than half a voxel, or more than half the network's input, on all axes."""
    targets, seen = settings.targets, settings.shapes.network_input_vox
    if not targets.lsds:
        return
    sigma_vox = [s / v for s, v in zip(targets.sigma_nm, targets.voxel_size_nm, strict=True)]
    # One axis is enough: a patch of few thick sections may be thinner than sigma.
    if max(sigma_vox) >= 0.5 and any(2 * s <= n for s, n in zip(sigma_vox, seen, strict=True)):
        return
    half_nm = [n * v / 2 for n, v in zip(seen, targets.voxel_size_nm, strict=True)]
    raise ConfigError(
        "sigma does not suit the voxels and the network",
        where=f"{settings.stage}.sigma",
        wanted=f"from half a voxel to half the input of the network: at most {_text(half_nm)} nm "
        f"(input {list(seen)} vox)",
        found=f"{_text(targets.sigma_nm)} nm = {_text(sigma_vox)} vox",
        fix=f'"{10 * min(targets.voxel_size_nm):g} nm" is usual (10 of the shortest voxel edges), or a larger '
        "input_shape_vox",
    )


def _check_downsample(settings: TrainingSettings) -> None:
    step, output = settings.targets.lsd_downsample, settings.shapes.output_vox
    if settings.targets.lsds and any(n % step for n in output):
        raise ConfigError(
            "lsd_downsample does not divide the output of the network",
            where=f"{settings.stage}.lsd_downsample",
            wanted=f"a divisor of {list(output)} vox",
            found=step,
            fix="set lsd_downsample = 1, or another input_shape_vox",
        )


def _check_misalignment(settings: TrainingSettings) -> None:
    reach, (_, y, x) = settings.augmentation.max_misalign_vox, settings.shapes.network_input_vox
    if 2 * reach >= min(y, x):
        raise ConfigError(
            "sections would be moved out of the patch",
            where=f"{settings.stage}.max_misalign_vox",
            wanted=f"less than half the input of the network, {[y, x]} vox (y, x)",
            found=reach,
            fix="10 voxels are usual for misaligned sections",
        )


def _or_error(make: Callable[[], T]) -> tuple[T | None, StageError | None]:
    """The result of a function, or the error that it raises."""
    try:
        return make(), None
    except StageError as error:
        return None, error


def _text(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
