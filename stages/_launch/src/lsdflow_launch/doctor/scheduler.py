"""SLURM: whether it answers and has the partitions of [cluster]."""

from __future__ import annotations

from collections.abc import Iterator

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_launch.doctor.finding import Finding, fail, ok, warn
from lsdflow_launch.slurm.problems import Partition, partitions_there
from lsdflow_launch.slurm.table import cluster_of, job_settings


def scheduler_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield findings about the existing partitions, and those that the jobs of the experiment need."""
    wanted = experiment is not None and experiment.uses_cluster
    try:
        partitions = partitions_there()
    except StageError as error:
        if error.exit_code == 66 and not wanted:
            yield ok("scheduler", "no SLURM here: needed for lsdflow submit alone")
        else:
            yield fail("scheduler", f"{error.what} {error.found}".strip(), error.fix or "run on a login node")
        return
    listed = ", ".join(f"{p.name} ({p.nodes} nodes, {p.time_limit}, {p.state})" for p in partitions.values())
    yield (
        ok("scheduler", f"SLURM: {listed}")
        if partitions
        else warn("scheduler", "SLURM has no partitions", "ask its team")
    )
    if experiment is not None:
        yield from _asked_for(experiment, partitions, certain=wanted)


def _asked_for(experiment: Experiment, partitions: dict[str, Partition], *, certain: bool) -> Iterator[Finding]:
    """Check the partitions of the jobs; without [cluster] in the file a missing default is only a warning."""
    try:
        settings = job_settings(cluster_of(experiment), experiment)
    except StageError as error:
        yield fail("[cluster]", error.what, error.fix)
        return
    named = {name for k, v in settings.items() if k.endswith("_PARTITION") for name in v.split(",") if name}
    missing = sorted(named - set(partitions))
    down = sorted(name for name in named & set(partitions) if partitions[name].state != "up")
    fix = f"set cluster.partition_cpu and cluster.partition_gpu: {', '.join(partitions)}"
    if missing:
        say = fail if certain else warn
        yield say("partitions of [cluster]", f"there is no {', '.join(missing)}", fix)
    if down:
        yield warn("partitions of [cluster]", f"not up: {', '.join(down)}", "jobs will wait; sinfo tells")
    if not missing and not down:
        yield ok("partitions of [cluster]", ", ".join(sorted(named)) or "the default one")
