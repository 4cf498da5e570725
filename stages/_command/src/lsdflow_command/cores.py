"""How many cores this process may use: what the job was given, not what the machine has."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cores(environment: Mapping[str, str] = os.environ) -> int:
    """SLURM's count, the CPU affinity, and the cgroup's quota, whichever is smallest; at least 1."""
    counts = [len(os.sched_getaffinity(0))]
    slurm = slurm_cores(environment)
    if slurm is not None:
        counts.append(slurm)
    quota = cgroup_quota()
    if quota is not None:
        counts.append(math.floor(quota))
    return max(1, min(counts))


def slurm_cores(environment: Mapping[str, str]) -> int | None:
    """Cores of this task in a SLURM job; None outside of a job.

    SLURM_CPUS_PER_TASK is only set where --cpus-per-task was given. Else it is this node's share of
    SLURM_JOB_CPUS_PER_NODE ("4(x2),3": two nodes of 4, one of 3), divided among the tasks on the node.
    """
    per_task = environment.get("SLURM_CPUS_PER_TASK", "")
    if per_task.isdigit() and int(per_task) > 0:
        return int(per_task)
    node = environment.get("SLURM_NODEID", "0")
    cores = _of_node(environment.get("SLURM_JOB_CPUS_PER_NODE", ""), node)
    tasks = _of_node(environment.get("SLURM_TASKS_PER_NODE", ""), node)
    if cores is None:
        return None
    return max(1, cores // max(1, tasks or 1))


def cgroup_quota(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Cores granted by this process's cgroup and those above it, the smallest; version 2 or 1. None without a limit.

    cgroups: where they are mounted. own: lines "number:controllers:path"; in a container the path may be that of the
    host, and what is mounted is the container's own cgroup.
    """
    quotas = [quota for folder in _folders(cgroups, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(cgroups: Path, own: Path) -> Iterator[Path]:
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    yield from (cgroups, cgroups / "cpu")
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            roots = [cgroups]
        elif "cpu" in controllers.split(","):
            roots = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        inner = Path(path.lstrip("/"))
        yield from (root / part for root in roots for part in (inner, *inner.parents) if ".." not in part.parts)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            maximum, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            return None if maximum == "max" else int(maximum) / int(period)
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return quota / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii")) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _of_node(counts: str, node: str) -> int | None:
    """The count of a node in SLURM's compact list, such as "4(x2),3"; None if it does not say."""
    every: list[int] = []
    for part in counts.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return None
        every += [int(found[1])] * int(found[2] or 1)
    return every[int(node)] if node.isdigit() and int(node) < len(every) else None
