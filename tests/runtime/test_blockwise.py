"""Serial and daisy runs, interruptions and failures leave the same bits, or a clear error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lsdflow_command.attempts import AttemptReader
from lsdflow_contract.errors import BadData, BlocksFailed, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, differences, read_manifest
from lsdflow_runtime.blocks import BlockPlan, read_grid, write_grid
from lsdflow_runtime.engine.blockwise import run_task, status_task
from lsdflow_runtime.engine.planning import plan_task
from lsdflow_runtime.io.volumes import open_volume

Make = Callable[..., Experiment]
SERIAL = "compute.runner=serial"


def _run(experiment: Experiment) -> Manifest:
    from lsdflow_toy.stage import block_task

    return run_task(block_task(experiment))


def _everything(experiment: Experiment) -> tuple[np.ndarray, np.ndarray, list[tuple[float, ...]]]:
    from lsdflow_toy.stage import block_task

    task = block_task(experiment)
    volumes = [open_volume(task.outputs["doubled"].path, f"volumes/{n}") for n in ("doubled", "affs")]
    nodes = [(float(n.id[0]), *n.center_nm[0], float(n.size_vox[0])) for n in task.rag_store.iter_nodes(task.key)]
    return volumes[0].read(volumes[0].box), volumes[1].read(volumes[1].box), nodes


def _same(a: Experiment, b: Experiment) -> bool:
    left, right = _everything(a), _everything(b)
    return all(np.array_equal(x, y) for x, y in zip(left[:2], right[:2], strict=True)) and left[2] == right[2]


def test_serial_run_computes_every_voxel_of_a_volume_that_is_no_multiple_of_the_block(make_experiment: Make) -> None:
    experiment = make_experiment("a", SERIAL)
    manifest = _run(experiment)
    raw = open_volume(experiment.layout.target_volume, "volumes/raw")
    doubled, _, nodes = _everything(experiment)
    assert np.array_equal(doubled, raw.read(raw.box).astype(np.uint64) * 2)
    assert len(nodes) == manifest.facts["blocks"] == 12
    assert manifest.facts["totals"]["voxels"] == doubled.size


@pytest.mark.parametrize("workers", [1, 3])
def test_daisy_workers_leave_the_same_bits_and_identity_as_the_serial_run(make_experiment: Make, workers: int) -> None:
    serial, parallel = make_experiment("a", SERIAL), make_experiment("b", f"compute.workers={workers}")
    assert _run(serial).identity == _run(parallel).identity
    assert _same(serial, parallel)


def test_a_worker_killed_inside_a_block_costs_nothing(make_experiment: Make) -> None:
    serial, killed = make_experiment("a", SERIAL), make_experiment("b")
    (killed.layout.root / "kill-once").touch()
    assert _run(serial).identity == _run(killed).identity
    assert not (killed.layout.root / "kill-once").exists()
    assert _same(serial, killed)


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_a_poison_block_is_named_the_others_are_done_and_a_rerun_does_only_it(
    make_experiment: Make, runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = make_experiment("a", f"compute.runner={runner}")
    (experiment.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed, match="poisoned") as caught, caplog.at_level("INFO", "lsdflow.progress"):
        _run(experiment)
    assert caught.value.exit_code == 79
    assert "11/12 blocks, 1 failed" in caplog.text
    assert not experiment.layout.manifest("toy").exists()
    from lsdflow_toy.stage import block_task

    status = status_task(block_task(experiment))
    assert (status["done"], status["failed"], status["finished"]) == (11, 1, False)
    (experiment.layout.root / "poison").unlink()
    assert _run(experiment).facts["blocks_executed"] == 1
    assert _same(experiment, _reference(make_experiment))


def _reference(make_experiment: Make) -> Experiment:
    experiment = make_experiment("reference", SERIAL)
    _run(experiment)
    return experiment


@pytest.mark.parametrize(("name", "code"), [("OutputConflict", 73), ("NoVoxelSize", 65)])
def test_an_error_of_a_worker_keeps_its_class_and_exit_code_however_deep_the_class_is(
    make_experiment: Make, name: str, code: int
) -> None:
    experiment = make_experiment("a", "compute.runner=daisy", "compute.workers=1")
    (experiment.layout.root / "bad").write_text(name)
    with pytest.raises(StageError, match="bad on request") as caught:
        _run(experiment)
    assert (type(caught.value).__name__, caught.value.exit_code) == (name, code)


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_bad_data_stops_the_run_with_its_own_exit_code(make_experiment: Make, runner: str) -> None:
    experiment = make_experiment("a", f"compute.runner={runner}")
    (experiment.layout.root / "bad").touch()
    with pytest.raises(BadData, match="bad on request"):
        _run(experiment)


def test_a_rerun_of_a_finished_stage_executes_nothing_and_touches_nothing(make_experiment: Make) -> None:
    experiment = make_experiment("a", SERIAL)
    first = _run(experiment)
    before = {p: p.stat().st_mtime_ns for p in _files(experiment)}
    assert _run(experiment) == first
    assert {p: p.stat().st_mtime_ns for p in _files(experiment)} == before


def _files(experiment: Experiment) -> list[Path]:
    return [p for p in experiment.layout.root.rglob("*") if p.is_file()]


def test_other_parameters_make_another_result_and_the_earlier_one_is_reused_without_a_block(
    make_experiment: Make,
) -> None:
    experiment, changed = make_experiment("a", SERIAL), make_experiment("a", SERIAL, "experiment.seed=3")
    first, values = _run(experiment), _everything(experiment)[0]
    before = {p: p.read_bytes() for p in _files(experiment) if "results" in p.parts}
    assert _run(changed).facts["blocks_executed"] == 12
    raw = open_volume(changed.layout.target_volume, "volumes/raw")
    assert np.array_equal(_everything(changed)[0], raw.read(raw.box).astype(np.uint64) * 3)
    assert {p: p.read_bytes() for p in before} == before
    assert read_manifest(experiment.layout, "toy").key != first.key
    assert _run(experiment) == read_manifest(experiment.layout, "toy") == first
    assert np.array_equal(_everything(experiment)[0], values)


def test_the_earlier_result_counts_until_that_of_other_parameters_is_whole(make_experiment: Make) -> None:
    first = _run(make_experiment("a", SERIAL))
    changed = make_experiment("a", SERIAL, "experiment.seed=3")
    (changed.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed):
        _run(changed)
    assert read_manifest(changed.layout, "toy") == first
    (changed.layout.root / "poison").unlink()
    assert read_manifest(changed.layout, "toy").key != _run(changed).key


def test_a_late_worker_of_other_parameters_overwrites_nothing(make_experiment: Make) -> None:
    """It wrote into a verified chunk of other parameters once: held in a put while these were set and run."""
    from lsdflow_toy.stage import block_task

    slow, changed = make_experiment("a", SERIAL), make_experiment("a", SERIAL, "experiment.seed=3")
    late = block_task(slow)
    late.create_outputs()
    opened = {name: output.open() for name, output in late.outputs.items()}
    with late.open() as function:
        block = late.plan.block(3)
        output = function(block)
    _run(changed)
    values = _everything(changed)[0]
    for name, volume in opened.items():
        volume.write(block.write, output.arrays[name])
    assert np.array_equal(_everything(changed)[0], values)


def test_null_scores_survive_the_store(make_experiment: Make) -> None:
    from lsdflow_toy.stage import block_task

    experiment = make_experiment("a", SERIAL)
    _run(experiment)
    task = block_task(experiment)
    scores = [float(e.merge_score[0]) for e in task.rag_store.iter_edges(task.key, "mean")]
    assert np.isnan(scores[0])
    assert scores[1:] == [0.5] * 11


def test_plan_counts_blocks_and_bytes_without_writing(make_experiment: Make) -> None:
    from lsdflow_toy.stage import block_task

    experiment = make_experiment("a", SERIAL)
    before = _files(experiment)
    facts = plan_task(block_task(experiment))
    assert facts["blocks"] == 12
    assert facts["bytes_out_uncompressed"] == 18 * 16 * 11 * (8 + 3)
    assert _files(experiment) == before


def test_a_block_that_fails_by_itself_is_tried_three_times_by_whatever_worker(make_experiment: Make) -> None:
    experiment = make_experiment("a", "compute.workers=2")
    (experiment.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed, match="poisoned"):
        _run(experiment)
    from lsdflow_toy.stage import block_task

    assert block_task(experiment).marks.failure(2)["attempts"] == 3
    with pytest.raises(BlocksFailed, match="poisoned"):
        _run(experiment)
    assert block_task(experiment).marks.failure(2)["attempts"] == 3, "a new run tries again"


@pytest.mark.proves("TRB-10")
def test_a_block_that_never_ends_is_given_up_after_three_time_outs_and_named(make_experiment: Make) -> None:
    experiment = make_experiment("a", "compute.workers=2", "compute.block_timeout_s=3")
    (experiment.layout.root / "hang").touch()
    with pytest.raises(BlocksFailed, match="1 of 12 blocks") as caught:
        _run(experiment)
    assert "block 2" in caught.value.found
    assert "took longer than 3 s" in caught.value.found
    from lsdflow_toy.stage import block_task

    assert block_task(experiment).marks.failure(2)["attempts"] == 3
    (experiment.layout.root / "hang").unlink()
    reference = make_experiment("b", SERIAL)
    assert _run(experiment).identity == _run(reference).identity


def test_a_block_survives_more_lost_workers_than_it_may_fail(make_experiment: Make) -> None:
    serial, weather = make_experiment("a", SERIAL), make_experiment("b", "compute.workers=1")
    (weather.layout.root / "kill-times").write_text("5")
    assert _run(serial).identity == _run(weather).identity
    assert (weather.layout.root / "kill-times").read_text() == "0"


@pytest.mark.proves("NEW-05")
def test_a_block_that_takes_too_long_is_done_a_second_time_by_a_worker_without_work(make_experiment: Make) -> None:
    serial, experiment = make_experiment("a", SERIAL), make_experiment("b", "compute.workers=2")
    for name in ("slow-once", "impatient"):
        (experiment.layout.root / name).touch()
    began = time.monotonic()
    assert _run(experiment).identity == _run(serial).identity
    assert time.monotonic() - began < 250, "nobody waited for the slow attempt"
    attempts = AttemptReader(experiment.layout.stage_runs("toy"))
    assert [a.outcome for a in attempts.ended() if a.block == 2] == ["done"]
    assert [a.block for a in attempts.without_end()] == [2]


def test_differences_name_inputs_and_nested_settings_and_end_after_six() -> None:
    config = {"a": {"x": 1, "y": [1, 2]}, **{f"n{i}": 0 for i in range(7)}}
    earlier = Manifest(
        writer=Writer(stage="toy", version="1"),
        key="k",
        config=config,
        inputs={"predict": "1"},
        outputs={},
        identity="i",
    )
    other = {**config, "a": {"x": 2, "y": (1, 2)}}
    assert differences(earlier, other, {"predict": "2"}) == "a.x 1 -> 2, another input: predict"
    many = differences(earlier, {"a": config["a"]}, {"predict": "1"})
    assert many.startswith("n0 0 -> none, n1 0 -> none")
    assert many.endswith("n5 0 -> none, and 1 more")


def test_differences_list_what_a_user_set_with_short_values() -> None:
    """They once listed "resolved.scheme...", "another faces" and whole tables."""
    resolved = {"threshold": 0.48, "block_shape_vox": [256, 256, 256]}
    earlier = Manifest(
        writer=Writer(stage="toy", version="1"),
        key="k",
        config={"size": [1] * 20, "resolved": resolved},
        inputs={"faces": "1", "pass 0": "1", "mask": "1"},
        outputs={},
        identity="i",
    )
    other = {"size": "a" * 80, "resolved": {**resolved, "threshold": 0.35}}
    changed = differences(earlier, other, {"faces": "2", "pass 0": "2", "mask": "2"})
    assert changed == f"size [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, … -> {'a' * 31}…, another input: mask"
    same = {**other, "size": earlier.config["size"]}
    assert differences(earlier, same, {**earlier.inputs, "faces": "2"}) == "threshold 0.48 -> 0.35"


@pytest.mark.parametrize("damage", ["", "[]", '{"begin_vox": [0, 0, 0]}', "no voxels", "no block", "two axes"])
def test_the_blocks_of_a_pass_are_read_as_written_and_of_a_damaged_file_none(tmp_path: Path, damage: str) -> None:
    layout = ExperimentLayout(tmp_path)
    plan = BlockPlan(Box((1, 2, 3), (18, 24, 26)), (9, 12, 13))
    write_grid(layout, "watershed", "a", plan)
    assert read_grid(layout, "watershed", "a") == plan
    assert read_grid(layout, "watershed", "b") is None
    (path,) = (layout.stage_runs("watershed") / "grids").iterdir()
    grid = json.loads(path.read_text())
    changed = {
        "no voxels": {**grid, "shape_vox": [0, 24, 26]},
        "no block": {**grid, "block_shape_vox": [9, 0, 13]},
        "two axes": {**grid, "shape_vox": [18, 24]},
    }
    path.write_text(json.dumps(changed[damage]) if damage in changed else damage)
    assert read_grid(layout, "watershed", "a") is None
