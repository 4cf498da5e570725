"""The verbs of the stage predict: block tasks for the runtime, made from a Job; validate is in problems.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.arrays import LSDS
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest
from lsdflow_network.torch_build import torch_facts
from lsdflow_predict.checkpoints import check_weights
from lsdflow_predict.devices import check_precision
from lsdflow_predict.estimate import device_taken, estimate
from lsdflow_predict.job import STAGE, Job, gather, open_mask, predictions_of
from lsdflow_predict.problems import validate  # noqa: F401 - a verb like the others
from lsdflow_predict.work import affinity_task, lsd_task, only_lsds
from lsdflow_runtime.block_task import BlockTask
from lsdflow_runtime.blockwise import plan_task, run_blocks, run_task, status_task, worker_task
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.measured_block import measure_block
from lsdflow_runtime.rendezvous import coordinating
from lsdflow_runtime.repair import take_back_broken
from lsdflow_runtime.verify import verify_blocks, verify_task


def run(experiment: Experiment, options: RunOptions) -> None:
    """Predict everything that is not there yet."""
    with coordinating(STAGE, experiment):
        _run(gather(experiment), options)


def repair(experiment: Experiment) -> dict[str, Any]:
    """Predict again the blocks that are lost or damaged; with two passes those of the stored LSDs too."""
    with coordinating(STAGE, experiment):
        job = gather(experiment)
        facts: dict[str, Any] = {}
        if job.stores_lsds_first:
            facts |= {f"lsds_{name}": found for name, found in take_back_broken(lsd_task(job)).items()}
        if job.config.part == "all":
            facts |= take_back_broken(affinity_task(job))
        _run(job, RunOptions())
    return facts


def _run(job: Job, options: RunOptions) -> None:
    check_precision(job.experiment, job.config)
    check_weights(job.networks)
    open_mask(job.experiment, job.config, job.raw)
    if job.stores_lsds_first:
        run_blocks(lsd_task(only_lsds(job)), options)
    if job.config.part == "all":
        _name_stored_lsds(job, run_task(affinity_task(job), options))


def join(experiment: Experiment) -> None:
    """Take blocks from a coordinator that runs in another job."""
    join_coordinator(STAGE, experiment)


def verify(experiment: Experiment) -> dict[str, Any]:
    """Read back what a finished run made; with two passes the stored LSDs too."""
    job = gather(experiment)
    facts = verify_task(affinity_task(job))
    if job.stores_lsds_first:
        facts["lsds_blocks_read_back"] = verify_blocks(lsd_task(job))
    return facts


def plan(experiment: Experiment) -> dict[str, Any]:
    """Blocks, bytes, main memory of a worker, and seconds as far as they are known."""
    job = gather(experiment)
    task, first = affinity_task(job), lsd_task(job) if job.stores_lsds_first else None
    passes = {"passes": {"lsds": plan_task(first), "affs": plan_task(task)}} if first is not None else {}
    return {**plan_task(task), **passes, **estimate(job, task, first)}


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What one block takes, also of the memory of a GPU; done into a throw-away folder. With two passes: the first."""
    job = gather(experiment)
    first = lsd_task(job) if job.stores_lsds_first else affinity_task(job)
    facts = {**measure_block(first, folder), **device_taken(experiment.compute.device)}
    return {**facts, "pass": "lsds"} if job.stores_lsds_first else facts


def doctor(_experiment: Experiment | None) -> dict[str, Any]:
    """What this command finds on this machine: torch and its GPUs."""
    return torch_facts()


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done, what failed and why."""
    job = gather(experiment)
    facts = status_task(affinity_task(job))
    if job.stores_lsds_first:
        first = status_task(lsd_task(job))
        facts |= {f"lsds_{name}": first[name] for name in ("blocks", "done", "failed", "failures")}
    return facts


def worker(experiment: Experiment) -> None:
    """Take blocks from the coordinator; which pass they belong to is told by predict.part."""
    job = gather(experiment)
    worker_task(lsd_task(job) if job.config.part == "lsds" else affinity_task(job))


def block_task(experiment: Experiment) -> BlockTask:
    """The blocks that make the affinities."""
    return affinity_task(gather(experiment))


def _name_stored_lsds(job: Job, manifest: Manifest) -> None:
    """With two passes the manifest names the LSDs too."""
    if job.stores_lsds_first and "lsds" not in manifest.outputs:
        folder = (predictions_of(job) / LSDS.dataset).relative_to(job.experiment.layout.root)
        manifest.model_copy(update={"outputs": {**manifest.outputs, "lsds": str(folder)}}).write(job.experiment.layout)
