"""The workers of a stage, as the configuration gives them: here, or as SLURM jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.experiment import BLOCK_STAGES, GPU_STAGES, Experiment
from lsdflow_launch.slurm.table import cluster_of, job_settings, memory_bytes, time_limit_s

_GPU_RESOURCES = re.compile(r"(^|,)(gpu|shard|mps)\b")


@dataclass(frozen=True)
class Job:
    """The jobs that compute a stage, `count` at a time. None: no limit, or not known.

    processes: that share the cores of a job. device: where their networks run, "cpu" or "gpu". gpus: of each job.
    gpu_type: as SLURM names it. time_limit_s: for a block. stage_limit_s: for the whole stage with all its restarts;
    its coordinator has `coordinator_cores`.
    """

    partition: str = "this machine"
    count: int = 1
    cores: int = 1
    processes: int = 1
    device: str = "cpu"
    gpus: int = 0
    gpu_type: str = ""
    memory_bytes: int | None = None
    time_limit_s: float | None = None
    coordinator_cores: int = 0
    stage_limit_s: float | None = None


def local_job(experiment: Experiment, stage: str, facts: Mapping[str, Any], workers: int = 0) -> Job:
    """Return the workers of a stage with the plan `facts` on this machine; workers: of a stage with blocks."""
    compute, on_gpu = experiment.compute, str(facts.get("device", "")).startswith("cuda")
    device = "gpu" if on_gpu else "cpu"
    if stage in BLOCK_STAGES or stage == "prepare":
        count = workers or _processes(experiment)
        count = min(count, int(facts.get("gpus", 1))) if on_gpu else count  # a GPU has one worker
        return Job(count=count, cores=compute.threads_per_worker, device=device, gpus=int(on_gpu))
    processes = int(facts.get("processes") or 1)
    return Job(cores=int(facts.get("workers") or 0) + processes, device=device, gpus=processes if on_gpu else 0)


def _processes(experiment: Experiment) -> int:
    return 1 if experiment.compute.runner == "serial" else experiment.compute.workers


def slurm_job(experiment: Experiment, stage: str, workers: int = 0) -> Job:
    """Return the jobs of a stage on the cluster; workers: of a stage with blocks. Raises ConfigError (78)."""
    table, device = cluster_of(experiment), experiment.compute.device
    settings, own, blocks = job_settings(table, experiment), stage.upper().replace("-", "_"), stage in BLOCK_STAGES
    job = f"{own}_WORKER" if blocks else own
    nodes, gres, partition = (settings.get(f"{job}_{key}", "") for key in ("NODES", "GRES", "PARTITION"))
    gpus = [part.split(":")[1:] for part in gres.split(",") if part.split(":")[0] == "gpu"]
    asked = _GPU_RESOURCES.search(gres) or any(option.startswith("--gpu") for option in table.options)
    # Some clusters give the GPUs of a partition without being asked.
    may_have_gpus = asked or partition == table.partition_gpu != table.partition_cpu
    on_gpu = stage in GPU_STAGES and (device.startswith("cuda") or (device == "auto" and may_have_gpus))
    wanted = int(settings.get(f"{own}_WORKERS", 1))
    at_once = min(wanted, int(settings.get(f"{own}_WORKERS_AT_ONCE", wanted)))
    cores = int(settings[f"{job}_CPUS"]) * int(nodes or 1)
    return Job(
        partition=partition or "default",
        count=(workers if blocks else 0) or at_once,
        cores=cores,
        processes=min(_processes(experiment), cores) if stage == "prepare" else 1,
        device="gpu" if on_gpu else "cpu",
        gpus=sum(int(words[-1]) if words and words[-1].isdigit() else 1 for words in gpus) * int(nodes or 1),
        gpu_type=next((words[0] for words in gpus if words and not words[0].isdigit()), ""),
        memory_bytes=memory_bytes(settings[f"{job}_MEM"]),
        time_limit_s=time_limit_s(settings[f"{job}_TIME"]) - table.warn_s,
        coordinator_cores=int(settings[f"{own}_CPUS"]) if blocks else 0,
        stage_limit_s=(table.max_restarts + 1) * (time_limit_s(settings[f"{own}_TIME"]) - table.warn_s),
    )
