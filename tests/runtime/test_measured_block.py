"""A measured block leaves the experiment as it was, and reports what is really in the throw-away folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.planning import blocks_to_measure, measure_block, plan_task

Make = Callable[..., Experiment]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by a hash of its bytes."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


def test_a_measurement_changes_no_file_of_the_experiment_and_its_bytes_are_those_on_disk(
    make_experiment: Make, tmp_path: Path
) -> None:
    from lsdflow_toy.stage import block_task

    experiment, scratch = make_experiment("a", "compute.runner=serial"), tmp_path / "scratch"
    task, before = block_task(experiment), contents(experiment.layout.root)
    facts = measure_block(task, scratch)
    assert contents(experiment.layout.root) == before
    made = [p for p in scratch.rglob("*") if p.is_file()]
    marks = [p for p in made if p.parent.name == "done"]
    assert {p.stem for p in marks} == {str(n) for n in blocks_to_measure(task.plan)}
    # beside those that are made once: metadata, and the log of this process' attempts
    of_arrays_and_marks = [p for p in made if p.name != "zarr.json" and p.suffix != ".tsv"]
    # two blocks were done, one of them was measured
    assert facts["files"] * 2 == len(of_arrays_and_marks)
    assert 0 < facts["bytes_written"] < sum(p.stat().st_size for p in made)
    assert facts["voxels"] == task.plan.block(facts["block"]).write.size
    assert facts["bytes_read"] >= facts["voxels"]
    assert facts["seconds"] > 0
    assert facts["peak_rss_mib"] > 10


def test_the_only_block_is_measured_when_it_is_warm(make_experiment: Make, tmp_path: Path) -> None:
    assert blocks_to_measure(BlockPlan(Box((0, 0, 0), (8, 8, 8)), (8, 8, 8))) == (0, 0)
    # nine blocks: the middle one is number 4, and its neighbour pays for the start
    assert blocks_to_measure(BlockPlan(Box((0, 0, 0), (8, 24, 24)), (8, 8, 8))) == (5, 4)


def test_a_measurement_refuses_a_folder_that_holds_something(make_experiment: Make, tmp_path: Path) -> None:
    from lsdflow_toy.stage import block_task

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(OutputConflict):
        measure_block(block_task(make_experiment("a")), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_a_plan_reports_what_finished_blocks_took(make_experiment: Make) -> None:
    from lsdflow_toy.stage import block_task, run

    experiment = make_experiment("a", "compute.runner=serial")
    assert plan_task(block_task(experiment))["taken"] == {}
    run(experiment)
    task = block_task(experiment)
    seconds = [record["seconds"] for record in task.marks.records().values()]
    taken = plan_task(task)["taken"]
    assert taken["records"] == len(task.plan)
    assert taken["seconds_per_block"] == pytest.approx(sum(seconds) / len(seconds))
