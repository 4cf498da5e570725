"""All checks before a run: problems that the stages find, and those that no single stage finds.

The stages check their tables and inputs; a stage whose inputs do not exist yet is checked against descriptions of them.
The rest is checked here: the [cluster] table and what its jobs need, folders, images, disk space of the whole chain.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import (
    ConfigError,
    MissingInput,
    NotInstalled,
    PermissionDenied,
    StageError,
    StorageFailure,
)
from lsdflow_contract.errors import problems_of as errors_of
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import Ask, ask_stage
from lsdflow_launch.descriptions import (
    ask_described,
    described_bytes,
    descriptions_of,
    finished_stages,
    is_begun,
    stages_to_ask,
)
from lsdflow_launch.disk import SPARE, free_space
from lsdflow_launch.images.engines import sif_of
from lsdflow_launch.images.pins import pin_of_stage, read_pins
from lsdflow_launch.slurm.jobs import Partition, existing_partitions
from lsdflow_launch.slurm.table import cluster_of, job_settings

LOG = logging.getLogger("lsdflow.cluster")
# Keys of the answer beside the stages: problems of the experiment as a whole, and the checks that are not possible yet.
EXPERIMENT, NOT_CHECKED = "experiment", "not_checked"
TENSORFLOW = "-tensorflow"

Problem = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """The stages that are to run (None = all), and where.

    in_images: pinned images run the stages, so the packages of this machine do not matter.
    on_cluster: also check the partitions and SIFs that the jobs need.
    """

    stages: tuple[str, ...] | None = None
    in_images: bool = False
    on_cluster: bool = False

    def ignores(self, problem: Mapping[str, Any]) -> bool:
        """Return True for a package that is missing here, but is in the images."""
        return self.in_images and problem.get("error") == NotInstalled.__name__


def problems_of(experiment: Experiment, ask: Ask = ask_stage, scope: Scope | None = None) -> dict[str, list[Problem]]:
    """Return all problems that the stages find, by stage, and those of the experiment as a whole; leaves no files.

    Stages after the last one to run are not checked.
    """
    scope = scope or Scope()
    stages, finished = stages_of(experiment, last=(scope.stages or STAGES)[-1]), finished_stages(experiment)
    with_inputs = [stage for stage in stages_to_ask(experiment, finished) if stage in stages]
    with ThreadPoolExecutor(available_cores()) as pool, descriptions_of(experiment, finished, ask) as layout:
        of_results = pool.map(lambda stage: ask(stage, stage_arguments("validate", experiment)), with_inputs)
        of_descriptions = _validated_in_turn(experiment, layout, [s for s in stages if s not in finished], ask)
        found = of_descriptions | dict(zip(with_inputs, map(_as_list, of_results), strict=True))
        bytes_expected = {s: described_bytes(layout, s) for s in of_descriptions if not is_begun(experiment, s)}
    reported = {}
    for stage in stages:
        if any(_is_made_later(problem, stage, experiment) for problem in found[stage]):
            found[stage] = of_descriptions.get(stage, found[stage])
        reported[stage] = [p for p in found[stage] if not (_is_made_later(p, stage, experiment) or scope.ignores(p))]
    of_cluster = [p.as_dict() for p in cluster_problems(experiment, stages)] if scope.on_cluster else []
    return {**reported, EXPERIMENT: [*experiment_problems(experiment, bytes_expected, scope.in_images), *of_cluster]}


def _validated_in_turn(
    experiment: Experiment, layout: ExperimentLayout, stages: Sequence[str], ask: Ask
) -> dict[str, list[Problem]]:
    """Return the problems of each stage, found with the descriptions that the stages before it write."""
    found = {}
    for stage in stages:
        # `prepare validate` reads the voxels of its sources; a description needs only their metadata.
        answer = ask_described(experiment, "plan" if stage == STAGES[0] else "validate", stage, layout, ask)
        found[stage] = _as_list(answer)
    return found


def _as_list(answer: Any) -> list[Problem]:
    return answer if isinstance(answer, list) else [answer]


def _is_made_later(problem: Problem, stage: str, experiment: Experiment) -> bool:
    """Return True for an artifact that is missing because a stage of the chain has not run yet.

    Only paths in the folders that stages write into count: another path of the experiment is one that the user named.
    """
    layout = experiment.layout
    if problem["exit_code"] != MissingInput.exit_code or str(layout.root) not in problem["where"]:
        return False
    inside = problem["where"].partition(f"{layout.root}/")[2]
    written = {"", *(folder.name for folder in _folders_of_stages(layout))}
    earlier = stages_of(experiment, last=stage)[:-1]
    return inside.partition("/")[0] in written and not all(layout.manifest(s).exists() for s in earlier)


def _folders_of_stages(layout: ExperimentLayout) -> list[Path]:
    """Return the folders of an experiment that stages write into."""
    folders = [layout.store, layout.luts, layout.report, layout.results]
    return [*folders, layout.manifest("a").parent, layout.stage_runs("a").parent, layout.train_dir("a").parent]


def experiment_problems(
    experiment: Experiment, bytes_expected: Mapping[str, float], in_images: bool = False
) -> list[Problem]:
    """Return the problems that no stage finds. bytes_expected: what each stage will write."""
    checks: list[Callable[[], object]] = [
        partial(cluster_of, experiment),
        partial(_require_writable_folders, experiment),
    ]
    checks += [partial(_require_image_variants, experiment)] if in_images else []
    checks.append(partial(_require_disk_space, experiment, bytes_expected))
    return [problem.as_dict() for problem in errors_of(checks)]


def _require_writable_folders(experiment: Experiment) -> None:
    """Raise PermissionDenied (77) for the first folder of the experiment that this user may not write into."""
    layout = experiment.layout
    for folder in (layout.root, *_folders_of_stages(layout), *sorted(layout.results.glob("*"))):
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
    for stage in TRAININGS:
        needs = experiment.tables.get(stage, {}).get("backend") == "tensorflow" and stage in stages_of(experiment)
        if needs and not (pin := pin_of_stage(read_pins(path), stage, path)).version.endswith(TENSORFLOW):
            raise ConfigError(
                "the pinned image does not have tensorflow",
                where=f"{path}: {pin.key}",
                wanted=f'{pin.name}:<version>{TENSORFLOW}, as {stage}.backend = "tensorflow" needs',
                found=pin,
                fix=f'pin that variant of the image, or set {stage}.backend = "torch"',
            )


def _require_disk_space(experiment: Experiment, bytes_expected: Mapping[str, float]) -> None:
    """Raise StorageFailure (74) if the remaining stages are expected to need more disk space, with a spare 10 %."""
    needed = {stage: size for stage, size in bytes_expected.items() if size}
    free = free_space(experiment.layout.root).free_bytes
    if free < sum(needed.values()) * SPARE:
        parts = ", ".join(f"{stage} {size / 1e9:.1f} GB" for stage, size in needed.items())
        raise StorageFailure(
            "the disk is too small for what the stages will write",
            where=experiment.layout.root,
            wanted=f"about {sum(needed.values()) * SPARE / 1e9:.1f} GB ({parts}, and a tenth to spare)",
            found=f"{free / 1e9:.1f} GB free",
            fix="free some space, put the experiment on a larger disk, or choose a part of the volume with roi",
        )


def cluster_problems(experiment: Experiment, stages: Sequence[str]) -> list[StageError]:
    """Return the missing partitions and SIFs of the jobs of `stages`; empty for an experiment without [cluster].

    If SLURM is not installed or does not answer (a laptop), nothing is checked.
    """
    if not experiment.uses_cluster:
        return []
    try:
        existing = existing_partitions()
        of_partitions = partition_problems(experiment, stages, existing)
    except StageError as error:
        LOG.info("partitions and SIFs are not checked: %s", error.what)
        return []
    return [*of_partitions, *sif_problems(experiment, stages)]


def partition_problems(
    experiment: Experiment, stages: Sequence[str], existing: Mapping[str, Partition]
) -> list[StageError]:
    """Return the partitions of the jobs of `stages` that do not exist, or have no GPU where one is needed."""
    where = f"{experiment.path}: [cluster]"
    needed = needed_partitions(job_settings(cluster_of(experiment), experiment), stages)
    return errors_of(
        [partial(_require_partition, name, stage, gpu, existing, where) for name, (stage, gpu) in needed.items()]
    )


def sif_problems(experiment: Experiment, stages: Sequence[str]) -> list[StageError]:
    """Return the SIFs and pins of `stages` that are missing."""
    folder, images = experiment.resolve(cluster_of(experiment).images), experiment.layout.images_env
    found = errors_of([partial(_require_sif, folder, stage, images) for stage in stages])
    return list({problem.message(): problem for problem in found}.values())


def needed_partitions(settings: Mapping[str, str], stages: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Return the partitions of the jobs, each with the first stage that names it, and whether a job needs a GPU."""
    needed: dict[str, tuple[str, bool]] = {}
    for stage in stages:
        key = stage.upper().replace("-", "_")
        for job in (key, f"{key}_WORKER"):
            gpu = "gpu" in settings.get(f"{job}_GRES", "")
            for name in filter(None, settings.get(f"{job}_PARTITION", "").split(",")):
                first, before = needed.get(name, (stage, False))
                needed[name] = (first, before or gpu)
    return needed


def _require_partition(name: str, stage: str, gpu: bool, existing: Mapping[str, Partition], where: str) -> None:
    """Raise ConfigError (78) if the partition does not exist, or has no GPUs where one is needed."""
    fitting = [p.name for p in existing.values() if p.has_gpu or not gpu]
    if name in fitting:
        return
    raise ConfigError(
        f"the partition {name} has no GPU" if name in existing else f"the cluster has no partition {name}",
        where=f"{where}, jobs of {stage}",
        wanted=f"one of {', '.join(fitting)}" if fitting else "a partition with GPUs; there is none",
        found=f"partitions {', '.join(existing)}",
        fix='set cluster.partition_gpu ("": run on CPUs)' if gpu else "set cluster.partition_cpu",
    )


def _require_sif(folder: Path, stage: str, images: Path) -> None:
    sif_of(folder, stage, pin_of_stage(read_pins(images), stage, images))


def not_checked(experiment: Experiment, found: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Return the checks that are not possible yet, by the unfinished stage that must finish first.

    found: the problems, by stage.
    """
    open_stages = [s for s in stages_of(experiment) if not experiment.layout.manifest(s).exists()]
    remaining: dict[str, list[str]] = {}
    for stage, text in _later_checks(experiment, found):
        if stage in open_stages:
            remaining.setdefault(stage, []).append(text)
    return remaining


def _later_checks(experiment: Experiment, found: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield pairs: the stage that must finish first, and the check."""
    predict, evaluate, acrlsd = (experiment.tables.get(s, {}) for s in ("predict", "evaluate", "train-acrlsd"))
    if found.get("prepare"):
        yield "prepare", "settings against the shapes and voxel sizes of volumes that cannot be opened"
    yield "prepare", "grey values, ids and masks of all voxels (of large volumes, samples were read)"
    if predict.get("mask"):
        yield "prepare", "predict.mask"
    regions = evaluate.get("regions")
    for name, region in regions.items() if isinstance(regions, dict) else ():
        if isinstance(region, dict) and region.get("mask"):
            yield "prepare", f"evaluate.regions.{name}.mask"
    if experiment.common.mode == "acrlsd" and isinstance(acrlsd.get("lsd_checkpoint"), int):
        yield "train-lsd", "train-acrlsd.lsd_checkpoint"
    yield "train-lsd", "memory of a training step"
    yield "train-acrlsd", "memory of a training step"
    if str(predict.get("checkpoint", "best")).isdigit():
        yield "train-acrlsd", "predict.checkpoint"
    yield "agglomerate", "memory of segment (number of fragments and edges)"


def volumes_of(experiment: Experiment) -> dict[str, Any]:
    """Return what the volumes that can be opened contain, by name; `validate` of prepare reports the others."""
    found: dict[str, Any] = ask_stage(STAGES[0], stage_arguments("look", experiment)).get("volumes", {})
    return found


def _volume_line(name: str, volume: Mapping[str, Any]) -> str:
    def joined(numbers: Sequence[float]) -> str:
        """Return numbers as `40 x 8 x 8`."""
        return " x ".join(f"{number:g}" for number in numbers)

    grey, whole = " to ".join(f"{value:g}" for value in volume["grey"]), volume["whole"]
    line = f"{name}: {joined(volume['shape_vox'])} voxels of {joined(volume['voxel_size_nm'])} nm, {volume['format']}"
    line += f" {volume['dtype']}, grey values {grey or 'unknown'} (99.8 %)"
    if labels := volume["labels"]:
        # In a sample, neurons are cut.
        small = f" ({labels['neurons_below_1000_vox']} of less than 1000 voxels)" if whole else ""
        line += f"; {labels['neurons']} neurons{small}, "
        line += f"{labels['labelled_fraction']:.0%} labelled, {labels['trained_fraction']:.0%} inside of the mask"
    return line + ("" if whole else "; from a sample")


def show_problems(
    experiment: Experiment,
    as_json: bool,
    ask: Ask = ask_stage,
    scope: Scope | None = None,
    volumes: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Print all problems and the checks that are not possible yet. Raises typer.Exit with the first exit code.

    volumes: returns what is printed about the volumes, by name, if there are no problems.
    """
    found = problems_of(experiment, ask, scope)
    remaining = not_checked(experiment, found)
    codes = [problem["exit_code"] for problems in found.values() for problem in problems]
    seen = {} if codes else volumes()
    if as_json:
        typer.echo(json.dumps({**found, NOT_CHECKED: remaining, **({"volumes": seen} if seen else {})}))
    for name, volume in () if as_json else seen.items():
        typer.echo(_volume_line(name, volume))
    for stage, checks in () if as_json else remaining.items():
        typer.echo(f"not checked before {stage}: {'; '.join(checks)}")
    if not as_json:
        print_problems(found)
    if codes:
        raise typer.Exit(codes[0])
    if not as_json:
        typer.echo("no problems found")


def print_problems(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the problems of each stage to stderr."""
    for stage, problems in found.items():
        for problem in problems:
            typer.echo(f"{stage}: {problem['what']}", err=True)
            parts = {name: problem.get(name) for name in ("where", "wanted", "found", "fix")}
            for name, text in parts.items():
                if text:
                    typer.echo(f"  {name:>8}: {text}", err=True)
