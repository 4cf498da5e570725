"""Workers and cores that the configuration gives to a stage, on this machine or as SLURM jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_launch.slurm.table import BLOCK_STAGES, cluster_of, job_settings

LOCAL = "this machine"
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Job:
    """A kind of job: its partition, how many run at a time, and the resources of each. None: no limit, or not known.

    gpus: a fraction if workers share a GPU.
    """

    partition: str
    count: int = 1
    cores: int = 1
    gpus: float = 0
    memory_bytes: int | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Allotment:
    """The workers of a stage and, on a cluster, its coordinator. A stage without workers has one job that does all."""

    workers: Job
    coordinator: Job | None = None


def allotment_of(experiment: Experiment, stage: str, facts: Mapping[str, Any], *, on_slurm: bool) -> Allotment:
    """Return the workers of a stage. Raises ConfigError (78) for a wrong [cluster]."""
    if not on_slurm:
        return Allotment(_here(experiment, stage, facts))
    settings = job_settings(cluster_of(experiment), experiment)
    prefix = stage.upper().replace("-", "_")
    own = _job(settings, prefix)
    if stage not in BLOCK_STAGES:
        return Allotment(own)
    wanted = int(settings[f"{prefix}_WORKERS"])
    at_once = min(wanted, int(settings.get(f"{prefix}_WORKERS_AT_ONCE", wanted)))
    return Allotment(_job(settings, f"{prefix}_WORKER", at_once), own)


def _here(experiment: Experiment, stage: str, facts: Mapping[str, Any]) -> Job:
    on_gpu = str(facts.get("device", "")).startswith("cuda")
    if stage in BLOCK_STAGES:
        workers = 1 if experiment.compute.runner == "serial" else experiment.compute.workers
        gpus = min(workers, int(facts.get("gpus", 1))) / workers if on_gpu else 0
        return Job(LOCAL, workers, experiment.compute.threads_per_worker, gpus)
    processes = int(facts.get("processes") or 1)
    return Job(LOCAL, 1, int(facts.get("workers") or 0) + processes, gpus=processes if on_gpu else 0)


def _job(settings: Mapping[str, str], prefix: str, count: int = 1) -> Job:
    nodes = int(settings.get(f"{prefix}_NODES", "1"))
    return Job(
        partition=settings.get(f"{prefix}_PARTITION", "default"),
        count=count,
        cores=int(settings[f"{prefix}_CPUS"]) * nodes,
        gpus=_gpus(settings.get(f"{prefix}_GRES", "")) * nodes,
        memory_bytes=memory_bytes(settings[f"{prefix}_MEM"]),
        time_limit_s=time_limit_s(settings[f"{prefix}_TIME"]),
    )


def memory_bytes(text: str) -> int:
    """Return the bytes of sbatch's --mem: a number in MiB, or with a unit."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def time_limit_s(text: str) -> float:
    """Return the seconds of sbatch's --time: minutes, m:s, h:m:s or days-hours[:minutes[:seconds]]."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = (0, *parts, 0)[:3]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def _gpus(gres: str) -> int:
    """Return the number of GPUs in a --gres such as gpu:a100:2,tmp:5."""
    counts = [part.split(":")[1:] for part in gres.split(",") if part.split(":")[0] == "gpu"]
    return sum(int(c[-1]) if c and c[-1].isdigit() else 1 for c in counts)
