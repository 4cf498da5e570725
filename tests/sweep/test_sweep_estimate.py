"""What a sweep will cost, before anything has run and after some of it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.disk import disk_use
from lsdflow_launch.planning.evidence import Quantity
from lsdflow_launch.planning.plan import StageEstimate
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, planned, write_folders
from lsdflow_launch.sweep.merge import estimate
from lsdflow_launch.sweep.run import SweepRunner

from .conftest import FakeStages

GRID = "[axes]\n'watershed.min_seed_distance_vox' = [4, 6]\n'segment.threshold' = [0.2, 0.4]\n"
ALL = {"prepare": 1, "train-acrlsd": 1, "predict": 1, "watershed": 2, "agglomerate": 2, "segment": 4, "evaluate": 4}
SECONDS = 3.0  # of every stage of FakeStages


@pytest.fixture
def sweep(sweep_file: Callable[[str], Path]) -> SweepFolder:
    """2 x 2 runs, of which two and two share watershed and agglomerate."""
    found = load_sweep(sweep_file(GRID))
    return write_folders(found, found.default_folder)


def hours(stages: int) -> float:
    return round(stages * SECONDS / 3600, 3)


def test_before_any_run_stages_are_counted_and_nothing_is_guessed(sweep: SweepFolder) -> None:
    assert estimate(sweep, 2) == {
        "times_made": ALL,
        "seconds_once": {},
        "hours_left": 0.0,
        "hours_left_of_slowest_part": 0.0,
        "not_known": list(ALL),
        "bytes_left": None,
        "gpu_bytes": None,
    }


@pytest.mark.proves("SWP-09")
def test_the_plan_of_the_base_gives_times_disk_and_gpu_memory_before_any_run_has_finished(sweep: SweepFolder) -> None:
    known = {"walltime_s": Quantity(1800.0, ""), "bytes_written": Quantity(10.0, "")}
    plan = {
        "predict": StageEstimate({**known, "vram_per_worker_bytes": Quantity(5e9, "")}, 1.0),
        "segment": StageEstimate({**known, "vram_per_worker_bytes": Quantity(0, "no GPU is used")}, 1.0),
    }
    facts = estimate(sweep, 1, plan)
    assert facts["hours_left"] == 0.5 * (ALL["predict"] + ALL["segment"])
    assert facts["bytes_left"] == 10 * (ALL["predict"] + ALL["segment"])
    assert facts["gpu_bytes"] == 5e9
    assert facts["not_known"] == [stage for stage in ALL if stage not in plan]


def test_before_it_is_prepared_each_run_counts_the_stages_of_its_own_mode(sweep_file: Callable[[str], Path]) -> None:
    found = load_sweep(sweep_file("[axes]\n'experiment.mode' = ['affinities', 'acrlsd']\n"))
    unprepared = SweepFolder(found.default_folder, planned(found, found.default_folder))
    assert not unprepared.root.exists()
    times = estimate(unprepared, 1)["times_made"]
    assert (times["prepare"], times["train-lsd"], times["train-acrlsd"]) == (1, 1, 2)


def test_what_the_base_took_is_the_estimate_for_the_runs_before_any_has_finished(
    sweep: SweepFolder, base: Path
) -> None:
    made = {"key": "k", "config": {}, "inputs": {}, "outputs": {}, "identity": "w", "facts": {"seconds": 1800.0}}
    layout = load_experiment(base).layout
    Manifest.model_validate({"writer": Writer.of("watershed"), **made}).write(layout)
    facts = estimate(sweep, 2)
    assert facts["times_made"] == ALL
    assert facts["seconds_once"] == {"watershed": 1800.0}
    assert (facts["hours_left"], facts["hours_left_of_slowest_part"]) == (1.0, 1.0)
    assert facts["not_known"] == [stage for stage in ALL if stage != "watershed"]


def test_after_a_run_what_is_left_has_the_seconds_and_bytes_of_that_run(sweep: SweepFolder) -> None:
    first = sweep.plan.runs[0]
    SweepRunner(sweep, FakeStages()).run_all([first])
    facts = estimate(sweep, 2)
    left = {"watershed": 1, "agglomerate": 1, "segment": 3, "evaluate": 3}
    assert facts["times_made"] == left
    assert facts["seconds_once"] == dict.fromkeys(left, SECONDS)
    assert facts["not_known"] == []
    assert facts["hours_left"] == hours(8)
    # runs 2 and 4: segment and evaluate of both, the watershed and agglomeration of the fourth
    assert facts["hours_left_of_slowest_part"] == hours(6) != hours(8)
    assert facts["bytes_left"] == 3 * disk_use([sweep.run_folder(first)]).size_bytes > 0


def test_a_stage_takes_the_mean_of_the_runs_that_made_it(sweep: SweepFolder) -> None:
    SweepRunner(sweep, FakeStages()).run_all(sweep.plan.runs[:2])
    assert set(estimate(sweep, 1)["seconds_once"].values()) == {SECONDS}


def test_after_all_runs_nothing_is_left(sweep: SweepFolder) -> None:
    SweepRunner(sweep, FakeStages()).run_all(sweep.plan.runs)
    facts = estimate(sweep, 2)
    assert facts["times_made"] == facts["seconds_once"] == {}
    assert (facts["hours_left"], facts["hours_left_of_slowest_part"], facts["bytes_left"]) == (0.0, 0.0, 0)
