"""Resources that the jobs need and the cluster does not have: partitions, GPUs in them, SIFs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lsdflow_contract.errors import ConfigError, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_launch.images.engines import sif_of
from lsdflow_launch.images.pins import pin_of_stage, read_pins
from lsdflow_launch.slurm.jobs import ask_slurm
from lsdflow_launch.slurm.table import cluster_of, job_settings

LOG = logging.getLogger("lsdflow.cluster")
# Partition (a star marks the default one), state, nodes, time limit, generic resources of a node.
FORM = "%P|%a|%D|%l|%G"
LIMIT_S = 15.0


@dataclass(frozen=True)
class Partition:
    """A partition of SLURM. sinfo reports nodes with different GPUs separately; they are joined here."""

    name: str
    state: str
    nodes: int
    time_limit: str
    has_gpu: bool


def partitions_there() -> dict[str, Partition]:
    """Return all partitions by name. Raises MissingInput (66) without SLURM, StoreUnreachable (69) without answer."""
    found: dict[str, Partition] = {}
    for line in ask_slurm(["sinfo", "--noheader", f"--format={FORM}"], LIMIT_S).splitlines():
        if line.count("|") != 4:
            continue
        name, state, nodes, limit, resources = line.strip().split("|")
        name = name.rstrip("*")
        before = found.get(name, Partition(name, state, 0, limit, has_gpu=False))
        has_gpu = before.has_gpu or "gpu" in resources
        found[name] = Partition(name, state, before.nodes + int(nodes), limit, has_gpu)
    return found


def cluster_problems(experiment: Experiment, stages: Sequence[str]) -> list[StageError]:
    """Return the missing partitions and SIFs of the jobs of `stages`; empty for an experiment without [cluster].

    If SLURM is not installed or does not answer (a laptop), nothing is checked.
    """
    if not experiment.uses_cluster:
        return []
    try:
        table, there = cluster_of(experiment), partitions_there()
    except StageError as error:
        LOG.info("partitions and SIFs are not checked: %s", error.what)
        return []
    where = f"{experiment.path}: [cluster]"
    needed = _needed_partitions(job_settings(table, experiment), stages)
    checks = [partial(_require_partition, name, stage, gpu, there, where) for name, (stage, gpu) in needed.items()]
    folder, images = experiment.resolve(table.images), experiment.layout.images_env
    found = problems_of([*checks, *(partial(_require_sif, folder, stage, images) for stage in stages)])
    return list({problem.message(): problem for problem in found}.values())


def _needed_partitions(settings: Mapping[str, str], stages: Sequence[str]) -> dict[str, tuple[str, bool]]:
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


def _require_partition(name: str, stage: str, gpu: bool, there: Mapping[str, Partition], where: str) -> None:
    """Raise ConfigError (78) if the partition does not exist, or has no GPUs where one is needed."""
    fitting = [p.name for p in there.values() if p.has_gpu or not gpu]
    if name in fitting:
        return
    raise ConfigError(
        f"the partition {name} has no GPU" if name in there else f"the cluster has no partition {name}",
        where=f"{where}, jobs of {stage}",
        wanted=f"one of {', '.join(fitting)}" if fitting else "a partition with GPUs; there is none",
        found=f"partitions {', '.join(there)}",
        fix='set cluster.partition_gpu ("": run on CPUs)' if gpu else "set cluster.partition_cpu",
    )


def _require_sif(folder: Path, stage: str, images: Path) -> None:
    sif_of(folder, stage, pin_of_stage(read_pins(images), stage, images))
