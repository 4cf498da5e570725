"""The cores and the memory that this process may use: those of its job or container, not of the whole machine.

The smallest of three limits is used: the machine's (affinity, free memory), those of the cgroups (version 1 or 2) of
this process and above it, and SLURM's. In a container the path of the process's cgroup may be that on the host, while
the mount is the container's own cgroup. So the mount itself is also read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
MIB = 2**20
# Files with limit and use of a cgroup, and the part of the use that the kernel can free: version 2, version 1.
_MEMORY_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def available_cores(environment: Mapping[str, str] = os.environ) -> int:
    """The smallest of SLURM's count, the CPU affinity, and the cgroup's quota; at least 1."""
    quota = cgroup_quota()
    limits = (len(os.sched_getaffinity(0)), slurm_cores(environment), None if quota is None else math.floor(quota))
    return max(1, min(limit for limit in limits if limit is not None))


def slurm_cores(environment: Mapping[str, str]) -> int | None:
    """Cores of this task in a SLURM job; None outside of a job.

    SLURM_CPUS_PER_TASK is only set if --cpus-per-task was given. Otherwise it is the value for this node in
    SLURM_JOB_CPUS_PER_NODE ("4(x2),3": two nodes of 4, one of 3), divided by the tasks on the node.
    """
    per_task = environment.get("SLURM_CPUS_PER_TASK", "")
    if per_task.isdigit() and int(per_task) > 0:
        return int(per_task)
    node = environment.get("SLURM_NODEID", "0")
    cores = _count_of_node(environment.get("SLURM_JOB_CPUS_PER_NODE", ""), node)
    tasks = _count_of_node(environment.get("SLURM_TASKS_PER_NODE", ""), node)
    return None if cores is None else max(1, cores // max(1, tasks or 1))


@cache  # asked for at every block, and read from a dozen files
def cgroup_quota(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float | None:
    """Cores that the cgroups allow: the smallest quota; None without a limit.

    cgroups: where they are mounted. own: lines "number:controllers:path".
    """
    quotas = (_quota(folder) for folder in _cgroup_folders("cpu", cgroups, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def free_memory_bytes(
    environment: Mapping[str, str] = os.environ,
    cgroups: Path = CGROUPS,
    own: Path = OWN_CGROUP,
    meminfo: Path = MEMINFO,
) -> int:
    """The smallest of the machine's free memory, the rest of the cgroups' limits, and SLURM's grant; at least 0."""
    free = (_free_of_cgroup(folder) for folder in _cgroup_folders("memory", cgroups, own))
    limits = (_free_of_machine(meminfo), slurm_memory_bytes(environment), *free)
    return max(0, min(limit for limit in limits if limit is not None))


def memory_limit_bytes(
    environment: Mapping[str, str] = os.environ, cgroups: Path = CGROUPS, own: Path = OWN_CGROUP
) -> int:
    """The smallest of the machine's total memory, the limits of the cgroups, and SLURM's grant."""
    allowed = (_limit_of_cgroup(folder) for folder in _cgroup_folders("memory", cgroups, own))
    limits = (_memory_of_machine(), slurm_memory_bytes(environment), *allowed)
    return min(limit for limit in limits if limit is not None)


def slurm_memory_bytes(environment: Mapping[str, str]) -> int | None:
    """Memory of the job on this node (--mem, or --mem-per-cpu times its cores); None outside of a job.

    A --mem of 0 means the whole node: None.
    """
    for name, times in (("SLURM_MEM_PER_NODE", 1), ("SLURM_MEM_PER_CPU", available_cores(environment))):
        text = environment.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text) * times * MIB
    return None


def _count_of_node(counts: str, node: str) -> int | None:
    """The count of a node in SLURM's compact list, such as "4(x2),3"; None if the list does not contain it."""
    every: list[int] = []
    for part in counts.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return None
        every += [int(found[1])] * int(found[2] or 1)
    return every[int(node)] if node.isdigit() and int(node) < len(every) else None


def _cgroup_folders(controller: str, cgroups: Path, own: Path) -> Iterator[Path]:
    """Folders of this process's cgroup and of those above it that may limit `controller`."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    yield from (cgroups, cgroups / controller)
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has one tree. In version 1 a controller is mounted alone, or with others (cpu,cpuacct).
        roots = [cgroups / controllers, cgroups / controller] if controllers else [cgroups]
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


def _memory_of_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of_machine(meminfo: Path) -> int:
    try:
        available = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        available = None
    return _memory_of_machine() if available is None else int(available[1]) * 1024


def _free_of_cgroup(folder: Path) -> int | None:
    """The limit of a cgroup minus its use; None without a limit."""
    for limit, use, freed in _MEMORY_FILES:
        try:
            text = (folder / limit).read_text(encoding="ascii").strip()
            if text.isdigit():
                used = int((folder / use).read_text(encoding="ascii")) - _freed_when_short(folder, freed)
                return int(text) - max(0, used)
        except (OSError, ValueError):
            continue
    return None


def _limit_of_cgroup(folder: Path) -> int | None:
    for name, _, _ in _MEMORY_FILES:
        try:
            text = (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _freed_when_short(folder: Path, names: tuple[str, ...]) -> int:
    """Bytes of a cgroup's memory that hold cached files, which the kernel can free."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(size) for name, size in map(str.split, lines) if name in names)
