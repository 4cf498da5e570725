"""How many cores a job has: from SLURM and from cgroups of both versions, also nested ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsdflow_command.machine import available_cores, cgroup_quota, slurm_cores


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def quota_of(tmp_path: Path, own: str, files: dict[str, str]) -> float | None:
    (tmp_path / "own").write_text(own)
    return cgroup_quota(written(tmp_path / "cgroup", files), tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/job_7/step\n", {"a/job_7/cpu.max": "400000 100000\n", "a/job_7/step/cpu.max": "max 100000\n"}, 4.0),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "800000 100000\n"}, 2.0),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/../up\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("", {}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
    ],
)
def test_quotas_of_cgroups_2_are_the_smallest_on_the_way_up(tmp_path: Path, own: str, files, cores) -> None:
    assert quota_of(tmp_path, own, files) == cores


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "cores"), [("600000", 6.0), ("-1", None)])
def test_quotas_of_nested_cgroups_1_are_found(tmp_path: Path, mount: str, quota: str, cores: float | None) -> None:
    own = "9:memory:/slurm/uid_1/job_2\n4:cpu,cpuacct:/slurm/uid_1/job_2/step_0\n0::/\n"
    job = f"{mount}/slurm/uid_1/job_2"
    files = {f"{job}/cpu.cfs_quota_us": quota, f"{job}/cpu.cfs_period_us": "100000"}
    assert quota_of(tmp_path, own, files) == cores


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({}, None),
        ({"SLURM_CPUS_PER_TASK": "6", "SLURM_JOB_CPUS_PER_NODE": "64"}, 6),
        ({"SLURM_JOB_CPUS_PER_NODE": "8"}, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_TASKS_PER_NODE": "4"}, 2),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2", "SLURM_TASKS_PER_NODE": "2(x2),1"}, 3),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2),3", "SLURM_NODEID": "3"}, None),
        ({"SLURM_JOB_CPUS_PER_NODE": "many"}, None),
        ({"SLURM_CPUS_PER_TASK": ""}, None),
    ],
)
def test_a_slurm_job_says_how_many_cores_a_task_has(environment: dict[str, str], cores: int | None) -> None:
    assert slurm_cores(environment) == cores


def test_a_task_of_one_core_uses_one() -> None:
    assert available_cores({"SLURM_CPUS_PER_TASK": "1"}) == 1
    assert available_cores({}) >= 1
