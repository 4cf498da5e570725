"""All checks of the doctor, with those of services: SLURM with the partitions of [cluster], and the store.

Checks that load libraries run last, as they would slow down earlier measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch.doctor.folder import clock, folder_findings
from lsdflow_launch.doctor.machine import commands, container_findings, gpu_findings, machine
from lsdflow_launch.doctor.probe import Finding, ask_stage_in_time, fail, ok, warn
from lsdflow_launch.slurm.jobs import Partition, existing_partitions
from lsdflow_launch.slurm.table import cluster_of, job_settings

Check = Callable[[], Iterator[Finding]]
STORE_STAGE = "watershed"
STORE_S = 60.0


def findings(folder: Path) -> list[Finding]:
    """Return the findings for the folder of an existing or future experiment."""
    experiment, problems = _experiment(folder)
    quick: list[Check] = [
        machine,
        lambda: folder_findings(folder),
        container_findings,
        lambda: scheduler_findings(experiment),
    ]
    slow: list[Check] = [gpu_findings, lambda: store_findings(experiment), commands]
    return [*problems, *_in_parallel(quick), *_in_parallel(slow)]


def _in_parallel(checks: list[Check]) -> list[Finding]:
    with ThreadPoolExecutor(len(checks)) as pool:
        return [line for lines in pool.map(lambda check: list(check()), checks) for line in lines]


def _experiment(folder: Path) -> tuple[Experiment | None, list[Finding]]:
    try:
        return load_experiment(folder), []
    except MissingInput:
        return None, []
    except StageError as error:
        return None, [fail("experiment file", f"{error.where}: {error.what}", error.fix or "lsdflow validate DIR")]


def scheduler_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield findings about the existing partitions, and those that the jobs of the experiment need."""
    wanted = experiment is not None and experiment.uses_cluster
    try:
        partitions = existing_partitions()
    except StageError as error:
        if error.exit_code == 66 and not wanted:
            yield ok("scheduler", "no SLURM here: needed for lsdflow submit only")
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
        yield from _partition_findings(experiment, partitions, certain=wanted)


def _partition_findings(
    experiment: Experiment, partitions: dict[str, Partition], *, certain: bool
) -> Iterator[Finding]:
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
        yield warn("partitions of [cluster]", f"not up: {', '.join(down)}", "jobs will wait; see sinfo")
    if not missing and not down:
        yield ok("partitions of [cluster]", ", ".join(sorted(named)) or "the default one")


def store_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield the findings about a mongo store; a files store is part of the folder."""
    if experiment is None:
        return
    if experiment.store.engine == "files":
        yield ok("store", "files, in the folder of the experiment")
        return
    sets = [part for override in experiment.overrides for part in ("--set", override)]
    answer = ask_stage_in_time(STORE_STAGE, ["doctor", "--experiment", str(experiment.path), "--json", *sets], STORE_S)
    if "problem" in answer:
        yield fail("store", f"mongo: {answer['problem']}", "lsdflow validate DIR shows more")
        return
    yield from store_findings_of(answer["store"])


def store_findings_of(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings that follow from the facts of a mongo store."""
    if "problem" in facts:
        yield fail("store", f"mongo at {facts.get('address', '?')}: {facts['problem']}", str(facts.get("fix", "")))
        return
    yield ok("store", f"mongo {facts['version']} at {facts['address']}, {facts['seconds_to_answer']:.2f} s an answer")
    if facts["lets_strangers_in"]:
        yield warn("login of the store", "anyone is let in without a password", "start mongod with --auth")
    else:
        yield ok("login of the store", "with a password, this user may write")
    yield _safety(facts)
    yield clock("clock of the store", facts["clock_ahead_s"])


def _safety(facts: Mapping[str, Any]) -> Finding:
    found = f"writes ask for w={facts['w']}, journal {'on' if facts['journal'] else 'off'}"
    version = tuple(int(part) for part in str(facts["version"]).split(".")[:3] if part.isdigit())
    if version < (4, 4):
        return warn(
            "writes of the store", f"{found}; mongo {facts['version']} gets no repairs any more", "7.0 or newer"
        )
    if facts.get("replica_set"):
        return ok("writes of the store", f"{found}, replica set {facts['replica_set']}")
    if (8, 0, 32) <= version <= (8, 0, 38):
        fix = "a replica set of one member, or 7.0"
        return warn(
            "writes of the store", f"{found}; a single server of this version may lose them when it is killed", fix
        )
    return ok("writes of the store", f"{found}, one server")
