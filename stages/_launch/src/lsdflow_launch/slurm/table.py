"""The table [cluster] of experiment.toml: the SLURM resources of each stage.

[cluster]            account, partitions, the folder of SIFs, settings of all jobs
[cluster.watershed]  resources of one stage; those of its workers are called worker_...
[cluster.verify]     resources of the small jobs that check a stage before the next one begins
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, create_model, model_validator

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import BLOCK_STAGES, GPU_STAGES, STAGES, TRAININGS, Experiment, nearest
from lsdflow_contract.model import StrictModel

# SLURM's default MaxArraySize is 1001.
MOST_WORKERS = 1000
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Options that the wrappers set themselves, or that would run other commands or carry secrets.
RESERVED_OPTIONS = (
    *("array", "chdir", "dependency", "error", "export", "job-name", "kill-on-invalid-dep", "open-mode", "output"),
    *("parsable", "requeue", "signal", "test-only", "wait", "wrap"),
)

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.,-]*$")]
Memory = Annotated[str, StringConstraints(pattern=r"^[0-9]+[KMGT]?$")]
Time = Annotated[str, StringConstraints(pattern=r"^([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}$")]
Gres = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:,-]*$")]
SbatchOption = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:@/+&|*\[\]-]*)?$")]
Modules = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+/ -]*$")]
SafePath = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f'\"\\$`:,;]+$")]
# cpus, mem, time by profile: for a coordinator, a worker, and any other job.
_DEFAULTS: dict[str, dict[str, tuple[int, str, str]]] = {
    "tiny": {
        "coordinator": (1, "1G", "4:00:00"),
        "worker": (1, "2G", "4:00:00"),
        "verify": (1, "1G", "1:00:00"),
        "run": (2, "6G", "4:00:00"),
    },
    "standard": {
        "coordinator": (2, "16G", "7-00:00:00"),
        "worker": (1, "16G", "1-00:00:00"),
        "verify": (1, "8G", "12:00:00"),
        "run": (4, "32G", "2-00:00:00"),
    },
}
# Of profiles without a row of their own.
_LIKE = {"tiny-anisotropic": "tiny", "general": "standard", "general-anisotropic": "standard", "snemi3d": "standard"}
_DEFAULTS |= {name: _DEFAULTS[like] for name, like in _LIKE.items()}
_WORKERS = {name: 2 if name.startswith("tiny") else 8 for name in _DEFAULTS}


class JobTable(StrictModel):
    """Resources of a kind of job; the profile of the experiment gives the defaults."""

    partition: Name | None = Field(
        default=None, description="SLURM partition (default: partition_cpu or partition_gpu)"
    )
    cpus: int | None = Field(default=None, ge=1, description="number of cores")
    mem: Memory | None = Field(default=None, description='memory per node, for example "16G"')
    time: Time | None = Field(
        default=None, description='time limit, for example "2-00:00:00"; an interrupted job is queued again and resumes'
    )
    gres: Gres | None = Field(default=None, description='other resources, for example "gpu:a100:1"')


class TrainTable(JobTable):
    """[cluster.train-lsd], [cluster.train-acrlsd]."""

    nodes: int = Field(
        default=1,
        ge=1,
        description="number of nodes that share one training; `processes` of [train-...] is the number of processes on"
        " each",
    )


class BlockTable(JobTable):
    """[cluster.<stage>] of a stage with blocks: its coordinator (small, not on preemptible nodes) and its workers."""

    workers: int | None = Field(default=None, ge=1, le=MOST_WORKERS, description="number of worker jobs")
    workers_at_once: int | None = Field(
        default=None, ge=1, description="how many worker jobs run at the same time (default: all)"
    )
    worker_partition: Name | None = Field(default=None, description="partition of the worker jobs")
    worker_cpus: int | None = Field(default=None, ge=1, description="cores of a worker job")
    worker_mem: Memory | None = Field(default=None, description="memory of a worker job")
    worker_time: Time | None = Field(default=None, description="time limit of a worker job")
    worker_gres: Gres | None = Field(default=None, description="other resources of a worker job")


class SiteTable(StrictModel):
    """The settings of [cluster] itself, without those of the stages."""

    account: Name = Field(default="", description="account that is charged; empty = the cluster's default")
    qos: Name = Field(default="", description="quality of service; empty = the cluster's default")
    images: SafePath = Field(
        default="images", description="folder with the SIF images, absolute or relative to this file"
    )
    singularity: SafePath = Field(default="singularity", description="command or path of singularity or apptainer")
    modules: Modules = Field(
        default="", description='names for `module load` before a job calls singularity, for example "apptainer/1.4"'
    )
    binds: list[SafePath] = Field(
        default=[], description="further folders that the stages read or write; input volumes are bound automatically"
    )
    partition_cpu: Name = Field(
        default="cpu", description="partition for jobs without a GPU; empty = the cluster's default"
    )
    partition_gpu: Name = Field(default="gpu", description="partition with GPUs; empty = the cluster has none")
    interface: Name = Field(default="", description="network interface of the coordinators; empty = the first one")
    options: list[SbatchOption] = Field(
        default=[], description='further options of sbatch, for example "--exclude=node17"'
    )
    warn_s: int = Field(
        default=120, ge=1, le=65535, description="how many seconds before its time limit a job gets the signal to stop"
    )
    max_restarts: int = Field(default=20, ge=0, description="how often an interrupted job is queued again")
    verify: JobTable = Field(default=JobTable(), description="resources of the jobs that verify a stage")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for option in self.options:
            if option.removeprefix("--").partition("=")[0] in RESERVED_OPTIONS:
                msg = f"{option} is set by the wrappers"
                raise ValueError(msg)
        return self


def _stage_table(stage: str) -> type[JobTable]:
    if stage in TRAININGS:
        return TrainTable
    return BlockTable if stage in BLOCK_STAGES else JobTable


_STAGE_TABLES: dict[str, Any] = {
    stage.replace("-", "_"): (_stage_table(stage), Field(default=_stage_table(stage)(), alias=stage))
    for stage in STAGES
}
ClusterTable: type[SiteTable] = create_model(
    "ClusterTable",
    __base__=SiteTable,
    __doc__="[cluster]: the SLURM settings of the jobs of `lsdflow submit`.",
    **_STAGE_TABLES,
)


def cluster_of(experiment: Experiment) -> SiteTable:
    """Return the experiment's [cluster]. Raises ConfigError (78) that names the key, with a suggestion."""
    return experiment.table("cluster", ClusterTable)


def job_settings(table: SiteTable, experiment: Experiment) -> dict[str, str]:
    """Return every resource of every job: WATERSHED_MEM, WATERSHED_WORKER_CPUS, VERIFY_TIME, ..."""
    profile = experiment.common.profile
    found = _resources("VERIFY", table.verify, {}, _DEFAULTS[profile]["verify"], table.partition_cpu, "")
    for stage in STAGES:
        found |= _stage_settings(stage, table, profile)
    return found


def _stage_settings(stage: str, table: SiteTable, profile: str) -> dict[str, str]:
    prefix = stage.upper().replace("-", "_")
    of_stage = getattr(table, stage.replace("-", "_"))
    gpu = stage in GPU_STAGES and bool(table.partition_gpu)
    with_gpu = (table.partition_gpu, "gpu:1") if gpu else (table.partition_cpu, "")
    defaults = _DEFAULTS[profile]
    if not isinstance(of_stage, BlockTable):
        nodes = {"NODES": str(of_stage.nodes)} if isinstance(of_stage, TrainTable) else {}
        return _resources(prefix, of_stage, nodes, defaults["run"], *with_gpu)
    of_workers = JobTable(**{k: getattr(of_stage, f"worker_{k}") for k in JobTable.model_fields})
    workers = {"WORKERS": str(of_stage.workers or _WORKERS[profile])}
    if of_stage.workers_at_once:
        workers["WORKERS_AT_ONCE"] = str(of_stage.workers_at_once)
    # The coordinator of evaluate also skeletonizes the truth and draws the report, so it needs more.
    role = "run" if stage == "evaluate" else "coordinator"
    coordinator = _resources(prefix, of_stage, workers, defaults[role], table.partition_cpu, "")
    return coordinator | _resources(f"{prefix}_WORKER", of_workers, {}, defaults["worker"], *with_gpu)


def _resources(
    prefix: str,
    table: JobTable,
    more: Mapping[str, str],
    defaults: tuple[int, str, str],
    partition: str,
    gres: str,
) -> dict[str, str]:
    cpus, mem, time = defaults
    chosen: dict[str, Any] = {"PARTITION": partition, "CPUS": cpus, "MEM": mem, "TIME": time, "GRES": gres}
    chosen |= {k.upper(): v for k, v in table.model_dump(include=set(JobTable.model_fields)).items() if v is not None}
    return {f"{prefix}_{key}": str(value) for key, value in {**chosen, **more}.items() if value != ""}


def memory_bytes(text: str) -> int:
    """Return the bytes of sbatch's --mem: a number in MiB, or with a unit."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def time_limit_s(text: str) -> float:
    """Return the seconds of sbatch's --time: minutes, m:s, h:m:s or days-hours[:minutes[:seconds]]."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    parts = parts if dash or len(parts) == 3 else [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def require_block_stage(stage: str) -> None:
    """Raise ConfigError (78) unless the stage has blocks, and therefore workers."""
    if stage not in BLOCK_STAGES:
        fix = nearest(stage, BLOCK_STAGES)
        raise ConfigError(f"{stage} has no workers", wanted=", ".join(BLOCK_STAGES), fix=fix)
