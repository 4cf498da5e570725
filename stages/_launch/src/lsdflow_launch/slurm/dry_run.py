"""`lsdflow submit --dry-run`: the jobs and their resources as a table, and what a submission would lack."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import BLOCK_STAGES, Experiment
from lsdflow_launch.output import plain_console
from lsdflow_launch.preflight import needed_partitions, partition_problems, sif_problems
from lsdflow_launch.slurm.jobs import existing_partitions
from lsdflow_launch.slurm.table import cluster_of, job_settings

HEADS = ("stage", "jobs", "partition", "cores", "memory", "time", "GPU")


def rows_of_jobs(experiment: Experiment, stages: Sequence[str]) -> list[dict[str, str]]:
    """Return the kinds of jobs of a submission, one row each, by the names of HEADS; cores and memory are per node."""
    settings, found = job_settings(cluster_of(experiment), experiment), []
    for stage in stages:
        prefix = stage.upper().replace("-", "_")
        nodes = int(settings.get(f"{prefix}_NODES", "1"))
        first = "coordinator" if stage in BLOCK_STAGES else "run" if nodes == 1 else f"run on {nodes} nodes"
        found.append(_row(settings, prefix, stage, f"1 {first}"))
        if stage in BLOCK_STAGES:
            count, at_once = settings[f"{prefix}_WORKERS"], settings.get(f"{prefix}_WORKERS_AT_ONCE")
            text = f"{count} worker{'' if count == '1' else 's'}{f', {at_once} at once' if at_once else ''}"
            found.append(_row(settings, f"{prefix}_WORKER", stage, text))
    return [*found, _row(settings, "VERIFY", "each", f"{len(stages)} verify")]


def _row(settings: Mapping[str, str], prefix: str, stage: str, jobs: str) -> dict[str, str]:
    keys = ("PARTITION", "CPUS", "MEM", "TIME", "GRES")
    partition, *others = (settings.get(f"{prefix}_{key}", "") for key in keys)
    return dict(zip(HEADS, (stage, jobs, partition or "(default)", *others), strict=True))


def missing_for_jobs(experiment: Experiment, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a submission of these stages would lack: sbatch, partitions of this cluster, SIFs."""
    found: list[StageError] = []
    if shutil.which("sbatch") is None:
        found.append(MissingInput("no sbatch here", fix="submit on a login node of the cluster"))
    try:
        found += partition_problems(experiment, stages, existing_partitions())
    except StageError as error:
        names = ", ".join(needed_partitions(job_settings(cluster_of(experiment), experiment), stages))
        what = f"the partitions are not compared with those of the cluster: {names}"
        source = "" if experiment.tables.get("cluster") else "defaults, because experiment.toml has no [cluster]"
        fix = "set cluster.partition_cpu and cluster.partition_gpu to those that `sinfo` lists"
        found.append(type(error)(what, where=source, found=error.what, fix=fix))
    return [problem.as_dict() for problem in (*found, *sif_problems(experiment, stages))]


def show_jobs(rows: Sequence[Mapping[str, str]], missing: Sequence[Mapping[str, Any]]) -> None:
    """Print the table, what is missing, and the heading of the commands, which follow."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in HEADS:
        table.add_column(head, no_wrap=True, justify="right" if head in ("cores", "memory", "time") else "left")
    for before, row in zip(({}, *rows), rows, strict=False):
        table.add_row("" if row["stage"] == before.get("stage") else row["stage"], *(row[head] for head in HEADS[1:]))
    console = plain_console()
    console.print(table, highlight=False)
    lines = ["", "missing here for a submission:" if missing else "nothing is missing for a submission"]
    for problem in missing:
        parts = (problem["where"], problem["wanted"] and f"wanted {problem['wanted']}", problem["found"])
        lines += [f"  {problem['what']}{''.join(f'; {part}' for part in parts if part)}"]
        lines += [f"      {problem['fix']}"] if problem["fix"] else []
    for line in (*lines, "", "commands:"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
