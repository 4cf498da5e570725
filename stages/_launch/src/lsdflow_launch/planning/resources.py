"""Workers and cores that the configuration gives to a stage, here or as SLURM jobs; disk space, used and free."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.chain import BLOCK_STAGES
from lsdflow_launch.slurm.table import cluster_of, job_settings

LOCAL = "this machine"
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# 10^6 files of a shared file system can take minutes to count; after this time the count is reported as incomplete.
COUNT_SECONDS = 20.0


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
class StageWorkers:
    """The workers of a stage and, on a cluster, its coordinator. A stage without workers has one job that does all."""

    workers: Job
    coordinator: Job | None = None


def workers_of(experiment: Experiment, stage: str, facts: Mapping[str, Any], *, on_slurm: bool) -> StageWorkers:
    """Return the workers of a stage. Raises ConfigError (78) for a wrong [cluster]."""
    if not on_slurm:
        return StageWorkers(_local_job(experiment, stage, facts))
    settings = job_settings(cluster_of(experiment), experiment)
    prefix = stage.upper().replace("-", "_")
    own = _slurm_job(settings, prefix)
    if stage not in BLOCK_STAGES:
        return StageWorkers(own)
    wanted = int(settings[f"{prefix}_WORKERS"])
    at_once = min(wanted, int(settings.get(f"{prefix}_WORKERS_AT_ONCE", wanted)))
    return StageWorkers(_slurm_job(settings, f"{prefix}_WORKER", at_once), own)


def _local_job(experiment: Experiment, stage: str, facts: Mapping[str, Any]) -> Job:
    on_gpu = str(facts.get("device", "")).startswith("cuda")
    if stage in BLOCK_STAGES:
        workers = 1 if experiment.compute.runner == "serial" else experiment.compute.workers
        gpus = min(workers, int(facts.get("gpus", 1))) / workers if on_gpu else 0
        return Job(LOCAL, workers, experiment.compute.threads_per_worker, gpus)
    processes = int(facts.get("processes") or 1)
    return Job(LOCAL, 1, int(facts.get("workers") or 0) + processes, gpus=processes if on_gpu else 0)


def _slurm_job(settings: Mapping[str, str], prefix: str, count: int = 1) -> Job:
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


@dataclass(frozen=True)
class DiskUse:
    """Files and bytes found. complete: False if counting took too long."""

    files: int = 0
    size_bytes: int = 0
    complete: bool = True


def result_folders(layout: ExperimentLayout, stage: str) -> list[Path]:
    """Return the folders that hold the results of a stage (the rows of a mongo store are elsewhere)."""
    blocks, results = layout.store / "blocks" / stage, layout.results / stage
    folders = {
        "prepare": [results, layout.data],
        "predict": [results, blocks],
        "watershed": [results, layout.store / "nodes", blocks],
        "agglomerate": [results, *layout.store.glob("edges_*"), blocks],
        "segment": [results, layout.luts, blocks],
        "evaluate": [results, layout.report, *layout.store.glob("overlaps_*"), blocks],
    }
    return folders.get(stage, [layout.train_dir(stage)])


def disk_use(folders: list[Path]) -> DiskUse:
    """Count the files and bytes below folders."""
    files = size = 0
    end = time.monotonic() + COUNT_SECONDS
    for entry in (e for folder in folders for e in _files(folder)):
        files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
        if files % 1000 == 0 and time.monotonic() > end:
            return DiskUse(files, size, complete=False)
    return DiskUse(files, size)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [str(folder)] if folder.is_dir() else []
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


@dataclass(frozen=True)
class FreeSpace:
    """What the user may still write: bytes, and files (None where the file system does not count them)."""

    free_bytes: int
    free_files: int | None


def free_space(folder: Path) -> FreeSpace:
    """Return the free space of the file system that holds a folder."""
    found = os.statvfs(folder)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
