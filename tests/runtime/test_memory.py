"""Main memory: what is free and what there is, whoever limits it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lsdflow_command.machine import MIB, free_memory_bytes, memory_limit_bytes


def test_free_memory_is_what_the_tightest_of_machine_cgroups_and_job_leaves(tmp_path: Path) -> None:
    meminfo, own, cgroups = tmp_path / "meminfo", tmp_path / "own", tmp_path / "cgroups"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    own.write_text("0::/job/step\n")

    def free(**environment: str) -> int:
        return free_memory_bytes(environment, cgroups, own, meminfo)

    assert free() == 8000 * 1024
    _cgroup(cgroups / "job/step", "max", "50")
    assert free() == 8000 * 1024
    # The files that it holds in memory do not count as used.
    _cgroup(cgroups / "job", "7000000", "5000000", "anon 1\ninactive_file 1000000\nactive_file 500000\n")
    assert free() == 7_000_000 - 3_500_000
    _cgroup(cgroups, "900000", "1000000")
    assert free() == 0
    shutil.rmtree(cgroups)
    assert free(SLURM_MEM_PER_NODE="7") == 7 * MIB
    assert free(SLURM_MEM_PER_CPU="1", SLURM_CPUS_PER_TASK="1") == MIB
    assert free(SLURM_MEM_PER_NODE="0") == free(SLURM_MEM_PER_NODE="9") == 8000 * 1024
    own.write_text("7:cpu,cpuacct:/job\n3:memory:/job\n")
    _cgroup(cgroups / "memory/job", "6000000", "1000000", "total_inactive_file 3\ninactive_file 9\n", version=1)
    assert free() == 5_000_003
    assert 0 < free_memory_bytes() < 2**60


def _cgroup(folder: Path, limit: str, used: str, stat: str = "", version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (f"{limit}\n", f"{used}\n", stat), strict=True):
        (folder / name).write_text(text)


def test_the_limit_of_container_and_job_counts_where_it_is_smaller(tmp_path: Path) -> None:
    own, cgroups = tmp_path / "own", tmp_path / "cgroups"
    own.write_text("0::/job/step\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def limit(**environment: str) -> int:
        return memory_limit_bytes(environment, cgroups, own)

    assert limit() == machine
    for text, wanted in (("max", machine), ("1000000", 1_000_000), (str(2 * machine), machine)):
        _cgroup(cgroups / "job", text, "5")
        assert limit() == wanted
    _cgroup(cgroups / "job/step", "900000", "5")
    assert limit() == 900_000, "of the step, in the job"
    shutil.rmtree(cgroups)
    assert limit(SLURM_MEM_PER_NODE="7") == 7 * MIB
    assert limit(SLURM_MEM_PER_NODE=str(2 * machine // MIB)) == machine
