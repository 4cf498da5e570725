"""Problems of an experiment that no single stage finds: the [cluster] table, folders, disk space of the whole chain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError, PermissionDenied, StageError, StorageFailure
from lsdflow_contract.experiment import Experiment
from lsdflow_launch.chain import stages_of
from lsdflow_launch.images.pins import pin_of_stage, read_pins
from lsdflow_launch.slurm.table import cluster_of

SPARE = 1.1
TENSORFLOW = "-tensorflow"


def whole_problems(
    experiment: Experiment, to_come: Mapping[str, float], in_images: bool = False
) -> list[dict[str, Any]]:
    """Return all problems in the form of the stages' reports. `to_come`: bytes that each stage will write."""
    problems: list[StageError] = []
    checks: list[Callable[[Experiment], None]] = [_require_cluster, _require_writable_folders]
    checks += [_require_image_variants] if in_images else []
    checks.append(lambda e: _require_room(e, to_come))
    for check in checks:
        try:
            check(experiment)
        except StageError as error:
            problems.append(error)
    return [problem.as_dict() for problem in problems]


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write there."""
    return shutil.disk_usage(folder).free


def _require_cluster(experiment: Experiment) -> None:
    cluster_of(experiment)


def _require_writable_folders(experiment: Experiment) -> None:
    """Raise PermissionDenied (77) for the first folder of the experiment that this user may not write into."""
    layout = experiment.layout
    made = [layout.data, layout.store, layout.luts, layout.report, layout.results]
    made += [layout.manifest("a").parent, layout.stage_runs("a").parent, layout.train_dir("a").parent]
    made += sorted(layout.results.glob("*"))
    for folder in (layout.root, *made):
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionDenied(
                "no permission to write into a folder of the experiment",
                where=folder,
                wanted="a folder in which this user may write",
                found=f"uid {os.geteuid()}",
                fix="ask its owner for write permission, or create the experiment in your own folder",
            )


def _require_image_variants(experiment: Experiment) -> None:
    """Raise ConfigError (78) for backend = "tensorflow" if the pinned image of the training does not have it."""
    path = experiment.layout.images_env
    for stage in ("train-lsd", "train-acrlsd"):
        wants = experiment.tables.get(stage, {}).get("backend") == "tensorflow" and stage in stages_of(experiment)
        if wants and not (pin := pin_of_stage(read_pins(path), stage, path)).version.endswith(TENSORFLOW):
            raise ConfigError(
                "the pinned image does not have tensorflow",
                where=f"{path}: {pin.key}",
                wanted=f'{pin.name}:<version>{TENSORFLOW}, as {stage}.backend = "tensorflow" needs',
                found=pin,
                fix=f'pin that variant of the image, or set {stage}.backend = "torch"',
            )


def _require_room(experiment: Experiment, to_come: Mapping[str, float]) -> None:
    """Raise StorageFailure (74) if the remaining stages are expected to need more disk space, with a spare 10 %."""
    needed = {stage: size for stage, size in to_come.items() if size}
    free = free_bytes(experiment.layout.root)
    if free < sum(needed.values()) * SPARE:
        parts = ", ".join(f"{stage} {size / 1e9:.1f} GB" for stage, size in needed.items())
        raise StorageFailure(
            "the disk is too small for what the stages will write",
            where=experiment.layout.root,
            wanted=f"about {sum(needed.values()) * SPARE / 1e9:.1f} GB ({parts}, and a tenth to spare)",
            found=f"{free / 1e9:.1f} GB free",
            fix="free some space, put the experiment on a larger disk, or choose a part of the volume with roi",
        )
