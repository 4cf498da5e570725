"""Workers and threads of a training: the cores of its job, shared among its processes."""

from __future__ import annotations

import pytest

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "n1"}  # fmt: skip


@pytest.mark.proves("TLS-13")
@pytest.mark.parametrize(
    ("environment", "options", "workers", "threads"),
    [
        ({}, {}, 6, 12),
        ({}, {"processes": 4}, 1, 3),
        (TORCHRUN, {}, 1, 3),
        (SRUN, {}, 6, 12),  # SLURM gives each task cores of its own
        (TORCHRUN, {"num_workers": 7, "threads": 5}, 7, 5),
        ({}, {"processes": 40}, 1, 1),
    ],
)
def test_workers_and_threads_are_shared_among_the_processes_that_have_the_same_cores(
    prepared, monkeypatch: pytest.MonkeyPatch, environment, options, workers: int, threads: int
) -> None:
    from lsdflow_training import resolve, testing

    monkeypatch.setattr(resolve, "available_cores", lambda: 12)
    for name in ("num_workers", "threads"):
        monkeypatch.delitem(testing.MICRO_OPTIONS, name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = prepared("affinities", **options).settings
    assert (settings.num_workers, settings.threads) == (workers, threads)
