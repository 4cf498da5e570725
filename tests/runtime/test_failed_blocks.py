"""compute.failed_blocks = "accept": a stage finishes without a few failed blocks, lists them, and accepts no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.errors import BadData, BlocksFailed, StorageFailure
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import FailedBlock, fact_of, failed_blocks_of, own_failed_blocks
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.engine import blockwise
from lsdflow_runtime.engine.accepted_failures import accepted_failures
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import run_task, status_task
from lsdflow_runtime.engine.verify import verify_task
from lsdflow_runtime.io.volumes import Volume, open_volume

Make = Callable[..., Experiment]
ACCEPT, SERIAL = "compute.failed_blocks=accept", "compute.runner=serial"
FAILING = 2


def _task(experiment: Experiment) -> BlockTask:
    from lsdflow_toy.stage import block_task

    return block_task(experiment)


def _doubled(experiment: Experiment, on_grid: bool = True) -> Volume:
    task = _task(experiment)
    output = task.outputs["doubled"]
    return open_volume(output.path, output.spec.dataset, output.grid if on_grid else None)


def _with_hole(make_experiment: Make, *overrides: str, fault: str = "poison") -> tuple[Experiment, Manifest]:
    experiment = make_experiment("a", ACCEPT, *overrides)
    (experiment.layout.root / fault).touch()
    return experiment, run_task(_task(experiment))


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_an_accepted_failed_block_is_listed_and_reads_as_zero_and_all_else_is_as_in_a_whole_run(
    make_experiment: Make, runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    experiment, manifest = _with_hole(make_experiment, f"compute.runner={runner}")
    (failed,) = failed_blocks_of(read_manifest(experiment.layout, "toy"))
    hole = _task(experiment).plan.block(FAILING).write
    assert (failed.stage, failed.block, failed.box) == ("toy", FAILING, hole)
    assert "poisoned" in failed.why
    assert "finishes without 1 of 12 blocks" in caplog.text
    whole = make_experiment("whole", SERIAL)
    assert run_task(_task(whole)).identity != manifest.identity
    found, wanted = _doubled(experiment), _doubled(whole)
    expected = wanted.read(wanted.box)
    expected[hole.slices()] = 0
    assert np.array_equal(found.read(found.box), expected)
    known = found.known(found.box)
    assert known is not None
    assert np.array_equal(~known, np.isin(np.arange(known.size).reshape(known.shape), _numbers_in(hole, known.shape)))
    assert wanted.known(wanted.box) is None


def _numbers_in(box: Box, shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape)[box.slices()].ravel()


def test_a_block_whose_workers_were_all_lost_is_accepted(make_experiment: Make) -> None:
    _, manifest = _with_hole(make_experiment, "compute.workers=2", fault="segfault")
    (failed,) = own_failed_blocks(manifest)
    assert (failed.block, "no worker came back" in failed.why) == (FAILING, True)


@pytest.mark.parametrize("settings", [("compute.failed_blocks=stop",), (ACCEPT, "compute.max_failed=0")])
def test_a_failed_block_that_is_not_accepted_stops_the_stage_without_a_manifest(
    make_experiment: Make, settings: tuple[str, ...]
) -> None:
    experiment = make_experiment("a", SERIAL, *settings)
    (experiment.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed) as caught:
        run_task(_task(experiment))
    assert caught.value.exit_code == 79
    assert not experiment.layout.manifest("toy").exists()


@pytest.mark.parametrize(("exit_code", "accepted"), [(70, True), (74, False)])
def test_a_block_that_failed_with_an_error_of_every_block_is_not_accepted(
    make_experiment: Make, exit_code: int, accepted: bool
) -> None:
    task = _task(make_experiment("a", SERIAL, ACCEPT))
    for number in range(len(task.plan)):
        if number != FAILING:
            task.marks.mark_done(number, {})
    assert accepted_failures(task) == (), "nothing is known of the block"
    task.marks.mark_failed(FAILING, {"what": "it failed", "exit_code": exit_code})
    assert [failed.block for failed in accepted_failures(task)] == [FAILING] * accepted


def test_which_blocks_are_missing_is_part_of_the_identity(make_experiment: Make) -> None:
    """Also where all blocks are alike."""
    task = _task(make_experiment("a"))
    records = {number: {"checksums": {"doubled": "same"}} for number in range(len(task.plan))}
    holes = [{n: record for n, record in records.items() if n != missing} for missing in (2, 3)]
    assert len({task.identity(found) for found in (records, *holes)}) == 3


def test_a_pass_that_must_be_whole_accepts_no_failed_block(make_experiment: Make) -> None:
    experiment = make_experiment("a", SERIAL, ACCEPT)
    (experiment.layout.root / "poison").touch()
    with pytest.raises(BlocksFailed):
        run_task(replace(_task(experiment), may_have_holes=False))


def test_a_run_in_which_every_block_failed_is_never_accepted(
    make_experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment("a", SERIAL, ACCEPT, "compute.max_failed=100")

    def fail(*_: object) -> None:
        raise ValueError("nothing works")

    monkeypatch.setattr(blockwise, "_do_block", fail)
    with pytest.raises(BlocksFailed):
        run_task(_task(experiment))


@pytest.mark.parametrize("error", [BadData, StorageFailure])
def test_an_error_that_concerns_every_block_is_never_accepted(
    make_experiment: Make, monkeypatch: pytest.MonkeyPatch, error: type[BadData]
) -> None:
    experiment = make_experiment("a", SERIAL, ACCEPT)
    do_block = blockwise._do_block

    def fail_at_last(task: BlockTask, opened: object, function: object, block: object, *rest: object) -> None:
        if block.number == len(task.plan) - 1:  # type: ignore[attr-defined]
            raise error("no good for anybody")
        do_block(task, opened, function, block, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(blockwise, "_do_block", fail_at_last)
    with pytest.raises(error):
        run_task(_task(experiment))
    # what was left of it must not be taken for a failed block either
    with pytest.raises(error):
        run_task(_task(experiment))


def test_the_same_command_tries_the_block_again_and_leaves_the_bits_and_identity_of_a_whole_run(
    make_experiment: Make,
) -> None:
    experiment, first = _with_hole(make_experiment, SERIAL)
    again = run_task(_task(experiment))
    assert (again.identity, failed_blocks_of(again)) == (first.identity, failed_blocks_of(first))
    (experiment.layout.root / "poison").unlink()
    healed = run_task(_task(experiment))
    whole = make_experiment("whole", SERIAL)
    assert healed.identity == run_task(_task(whole)).identity
    assert failed_blocks_of(healed) == ()
    assert healed.facts["blocks_executed"] == 1
    found, wanted = _doubled(experiment), _doubled(whole)
    assert np.array_equal(found.read(found.box), wanted.read(wanted.box))


def test_a_chunk_that_is_missing_outside_of_the_holes_stays_an_error(make_experiment: Make) -> None:
    experiment, _ = _with_hole(make_experiment, SERIAL)
    task, volume = _task(experiment), _doubled(experiment)
    z, y, x = task.plan.block(3).index
    made(experiment.layout, "toy").joinpath("volumes", "doubled", "c", str(z), str(y), str(x)).unlink()
    with pytest.raises(BadData, match="a chunk that should exist does not"):
        volume.read(volume.box)
    with pytest.raises(BadData, match="lost or damaged"):
        verify_task(task)


def test_what_a_failed_attempt_left_in_a_hole_is_not_read(make_experiment: Make) -> None:
    experiment, _ = _with_hole(make_experiment, SERIAL)
    hole = _task(experiment).plan.block(FAILING).write
    half_done = replace(_doubled(experiment), holes=())
    half_done.write(hole, np.full(hole.shape_vox, 7, np.uint64))
    assert not _doubled(experiment).read(hole).any()


def test_an_array_that_is_opened_on_its_own_grid_has_its_holes_at_the_same_voxels(make_experiment: Make) -> None:
    experiment, _ = _with_hole(make_experiment, SERIAL)
    assert _doubled(experiment, on_grid=False).holes == _doubled(experiment).holes != ()


def test_verify_and_status_report_holes_and_repair_tries_them_again(make_experiment: Make) -> None:
    from lsdflow_toy.stage import repair

    experiment, manifest = _with_hole(make_experiment, SERIAL)
    task = _task(experiment)
    verified = verify_task(task)
    assert (verified["verified"], verified["blocks"], verified["blocks_read_back"]) == (True, 12, 11)
    assert "poisoned" in verified["failed_blocks"][0]
    status = status_task(task)
    assert (status["finished"], status["done"], len(status["accepted"])) == (True, 11, 1)
    assert repair(experiment)["identity"] == manifest.identity
    (experiment.layout.root / "poison").unlink()
    assert repair(experiment)["identity"] != manifest.identity
    assert "failed_blocks" not in verify_task(task)


def test_a_block_that_lost_its_mark_is_no_hole_unless_the_manifest_lists_it(make_experiment: Make) -> None:
    experiment, _ = _with_hole(make_experiment, SERIAL)
    task = _task(experiment)
    task.marks.remove(5)
    assert not status_task(task)["finished"]
    with pytest.raises(BlocksFailed, match=r"1 of 12.*\n.*\n.*block 5"):
        verify_task(task)


def test_a_manifest_inherits_the_holes_of_the_results_that_it_was_made_from(make_experiment: Make) -> None:
    experiment, changed = make_experiment("a", SERIAL), make_experiment("a", SERIAL, "experiment.seed=3")
    hole = FailedBlock(
        stage="predict", block=7, begin_vox=(0, 8, 0), shape_vox=(8, 8, 8), begin_nm=(20.0, 44.0, 0.0), why="lost"
    )
    source = run_task(_task(make_experiment("source", SERIAL)))
    source.model_copy(update={"facts": fact_of([hole]), "identity": "i"}).write(experiment.layout, "predict")
    made_of_it = run_task(replace(_task(experiment), inputs={"predict": "i", "prepare": "p"}))
    assert failed_blocks_of(made_of_it) == (hole,)
    assert own_failed_blocks(made_of_it) == ()
    assert failed_blocks_of(run_task(replace(_task(changed), inputs={"predict": "another result"}))) == ()


def test_the_command_ends_with_0_and_leaves_the_manifest(make_experiment: Make) -> None:
    from lsdflow_toy.stage import run

    experiment = make_experiment("a", SERIAL, ACCEPT)
    (experiment.layout.root / "poison").touch()
    run(experiment)
    assert Path(experiment.layout.manifest("toy")).exists()
