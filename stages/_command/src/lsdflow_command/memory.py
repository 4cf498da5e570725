"""How much main memory this process and those it starts may take: the machine's, or what its container or job has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lsdflow_command.cores import CGROUPS, OWN_CGROUP, available_cores

MEMINFO = Path("/proc/meminfo")
MIB = 2**20
# Limit and use of a cgroup, and what of its use the kernel gives back when memory is short: version 2, version 1.
_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def free_memory_bytes(
    environment: Mapping[str, str] = os.environ,
    cgroups: Path = CGROUPS,
    own: Path = OWN_CGROUP,
    meminfo: Path = MEMINFO,
) -> int:
    """What the machine has free, what the limits of the cgroups leave, what SLURM granted: the smallest, at least 0.

    cgroups, own: as in `lsdflow_command.cores`.
    """
    found = [_free_of_machine(meminfo)]
    found += [free for folder in _folders(cgroups, own) if (free := _free_of_cgroup(folder)) is not None]
    granted = slurm_memory_bytes(environment)
    return max(0, min(found if granted is None else [*found, granted]))


def memory_limit_bytes(
    environment: Mapping[str, str] = os.environ, cgroups: Path = CGROUPS, own: Path = OWN_CGROUP
) -> int:
    """What the machine has, what the cgroups allow, what SLURM granted: the smallest, used or free."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    found += [limit for folder in _folders(cgroups, own) if (limit := _limit_of_cgroup(folder)) is not None]
    granted = slurm_memory_bytes(environment)
    return min(found if granted is None else [*found, granted])


def slurm_memory_bytes(environment: Mapping[str, str]) -> int | None:
    """What the job was given on this node (--mem, or --mem-per-cpu times its cores); None outside of a job.

    A --mem of 0 is all of the node: None.
    """
    for name, times in (("SLURM_MEM_PER_NODE", 1), ("SLURM_MEM_PER_CPU", available_cores(environment))):
        text = environment.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text) * times * MIB
    return None


def _free_of_machine(meminfo: Path) -> int:
    try:
        available = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        available = None
    if available is not None:
        return int(available[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _folders(cgroups: Path, own: Path) -> Iterator[Path]:
    """This process's cgroup and those above it; in a container, what is mounted is the container's own."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    yield from (cgroups, cgroups / "memory")
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root, inner = cgroups / ("memory" if controllers else ""), Path(path.lstrip("/"))
        yield from (root / part for part in (inner, *inner.parents) if ".." not in part.parts)


def _free_of_cgroup(folder: Path) -> int | None:
    """What its limit leaves; None without a limit."""
    for limit, use, given_back in _FILES:
        try:
            text = (folder / limit).read_text(encoding="ascii").strip()
            if not text.isdigit():
                continue
            used = int((folder / use).read_text(encoding="ascii")) - _given_back(folder, given_back)
            return int(text) - max(0, used)
        except (OSError, ValueError):
            continue
    return None


def _limit_of_cgroup(folder: Path) -> int | None:
    for name, _, _ in _FILES:
        try:
            text = (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _given_back(folder: Path, names: tuple[str, ...]) -> int:
    """Memory that holds files which can be read again, bytes."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(size) for name, size in map(str.split, lines) if name in names)
