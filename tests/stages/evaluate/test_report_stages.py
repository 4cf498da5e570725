"""What the report shows of stages: maps of their blocks, what they took, and the state of each."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_contract.testing import made
from lsdflow_evaluate.cli import app
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import report_source, write_report
from lsdflow_evaluate.report.collect import loss_curve, run_problems
from lsdflow_evaluate.report.content import block_panels
from lsdflow_evaluate.report.data import BlockState, ReportData, Resources, StageBlocks
from lsdflow_evaluate.report.figures import STATE_COLOURS
from lsdflow_evaluate.report.stage_records import select_pass, stage_blocks, stage_record, stage_records, states_of
from lsdflow_evaluate.report.words import bytes_words
from lsdflow_evaluate.scores.scores_file import present_result
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.blocks import BlockPlan, read_grid, write_grid
from lsdflow_runtime.store.done_marks import DoneMarks

Make = Callable[..., Experiment]
DONE, RETRIED, MISSING, FAILED = BlockState.DONE, BlockState.RETRIED, BlockState.MISSING, BlockState.FAILED


def test_blocks_are_done_retried_missing_and_failed_at_their_places() -> None:
    grid = BlockPlan(Box((0, 0, 0), (3, 10, 7)), (2, 5, 4))
    found = states_of(grid, done={0, 1, 5, 99}, failed={6}, again={1, 2, 6})
    assert found.tolist() == [[[DONE, RETRIED], [MISSING, MISSING]], [[MISSING, DONE], [FAILED, MISSING]]]


def test_seen_along_z_a_column_has_the_colour_of_its_worst_block_and_the_title_counts_them() -> None:
    states = np.array([[[DONE, RETRIED, DONE], [DONE, DONE, DONE]], [[FAILED, DONE, MISSING], [DONE, DONE, DONE]]])
    blocks = StageBlocks(9, 1, 12, np.ones(9), states, (4, 10, 20))
    done = StageBlocks(8, 0, 8, np.ones(8), np.zeros((2, 2, 2), np.uint8), (4, 10, 20))
    found = {"predict": done, "watershed": blocks}
    (panel,) = block_panels(ReportData("a", "now", blocks=found, voxel_size_nm=(8.0, 4.0, 2.0)))
    assert panel.title == "watershed: 9 done, 1 retried, 1 missing, 1 failed"
    assert panel.figure is not None
    assert panel.figure.aspect == pytest.approx((3 * 40) / (2 * 40))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(panel.figure.uri.split(",")[1]))))
    assert [tuple(pixel) for pixel in pixels[0]] == [STATE_COLOURS[s] for s in (FAILED, RETRIED, MISSING)]


def test_what_runs_used_adds_up_and_memory_is_that_of_the_largest_process() -> None:
    used = Resources.sum([Resources(2.0, 100, 10, 1), Resources(), Resources(3.0, 50, 20, None, "0: GPU", 7)])
    assert used == Resources(5.0, 100, 30, 1, "0: GPU", 7)
    assert [bytes_words(n) for n in (None, 0, 1 << 20, 300 << 20, 5 << 30)] == [
        "–",
        "0 MiB",
        "1 MiB",
        "300 MiB",
        "5.0 GiB",
    ]


def _present_scores(experiment: Experiment, config: EvaluateConfig) -> dict[str, Any]:
    return present_result(experiment.layout, config)[1]


def _outcome(experiment: Experiment, stage: str, name: str, **values: object) -> None:
    folder = experiment.layout.stage_runs(stage) / name
    write_json(folder / "config.resolved.json", {"config": {"size": 3}, "overrides": ["a.b=c d"]})
    if values:
        write_json(folder / "outcome.json", {"started": 1.0, "seconds": 2.0, "error": None, **values})


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"exit_code": 65}, "failed"),
        ({"exit_code": 75}, "stopped"),
        ({"exit_code": 143}, "stopped"),
        ({}, "unended"),
        (None, "not started"),
    ],
)
def test_the_state_of_a_stage_is_how_its_newest_run_ended(make_experiment: Make, outcome: dict, state: str) -> None:
    experiment = make_experiment()
    if outcome is not None:
        _outcome(experiment, "agglomerate", "20260101T000000-1", exit_code=0)
        _outcome(experiment, "agglomerate", "20260102T000000-1", **outcome)
    found = stage_record(experiment.layout, "agglomerate", None)
    assert found.state == state
    if outcome is not None:
        assert found.settings == (("size", "3"),)
        assert found.last is not None
        assert found.last.command == "agglomerate run --experiment experiment.toml --set 'a.b=c d'"
    finished = stage_record(experiment.layout, "watershed", read_manifest(experiment.layout, "watershed"))
    assert finished.state == "finished"


def test_a_report_at_any_moment_has_every_stage_and_counts_nothing(make_experiment: Make) -> None:
    experiment = make_experiment()
    experiment.layout.manifest("segment").unlink()
    assert write_report(experiment, refresh_s=60) == []
    index = _index(experiment)
    for stage in STAGES:
        assert f'<th scope="row">{stage}</th>' in index
    assert '<meta http-equiv="refresh" content="60">' in index
    assert "nothing is segmented yet" in index
    assert 'id="errors"' not in index
    assert not (experiment.layout.store / "blocks" / "evaluate").exists()
    assert not (experiment.layout.report / "scores.json").exists()


def test_the_command_report_names_what_it_could_not_read_and_writes_the_page_all_the_same(
    make_experiment: Make,
) -> None:
    experiment = make_experiment()
    chunk = next(p for p in (made(experiment.layout, "segment") / "volumes/segmentation/c").rglob("*") if p.is_file())
    chunk.unlink()
    done = CliRunner().invoke(app, ["report", "-e", str(experiment.path)])
    assert done.exit_code == BadData.exit_code
    assert '<span class="stage">segment</span>' in _index(experiment)


def _index(experiment: Experiment) -> str:
    return (experiment.layout.report / "index.html").read_text()


def test_a_damaged_done_mark_of_a_stage_leaves_the_blocks_of_the_others_on_the_page(
    finished: Experiment, copy_of: Make
) -> None:
    experiment = copy_of(finished, "a")
    key = read_manifest(experiment.layout, "watershed").key
    write_grid(experiment.layout, "watershed", key, BlockPlan(Box((0, 0, 0), (18, 24, 26)), (9, 12, 26)))
    assert write_report(experiment) == []
    assert "watershed: 3 done, 1 missing" in _index(experiment)
    mark = next((experiment.layout.store / "blocks" / "watershed" / key).rglob("*.json"))
    mark.write_text("{")
    assert [str(mark) in error.where for error in write_report(experiment)] == [True]
    assert "watershed: 3 done, 1 missing" not in _index(experiment)
    assert "3 of 4 blocks" not in _index(experiment)


def test_scores_that_were_changed_after_the_run_are_not_reported(finished: Experiment, copy_of: Make) -> None:
    experiment = copy_of(finished, "a")
    path = experiment.layout.report / "scores.json"
    write_json(path, {**json.loads(path.read_text()), "voi": 0.001})
    assert _present_scores(finished, EvaluateConfig())["voi"] > 0.001
    assert _present_scores(experiment, EvaluateConfig()) == {}
    with pytest.raises(BadData, match=r"(?s)was changed.*scores\.json"):
        Evaluate().verify(experiment)


def test_only_the_error_of_the_last_run_is_a_problem(make_experiment: Make) -> None:
    experiment = make_experiment()
    error = {"what": "the affinities are spoilt", "fix": "predict them again"}
    _outcome(experiment, "agglomerate", "20260101T000000-1", exit_code=65, error=error)
    (problem,) = run_problems(report_source(experiment), {})
    assert (problem.what, problem.fix) == ("the affinities are spoilt", "predict them again")
    _outcome(experiment, "agglomerate", "20260102T000000-1", exit_code=0)
    assert run_problems(report_source(experiment), {}) == []


def test_losses_are_read_row_by_row_and_rows_that_cannot_be_read_are_left_out(make_experiment: Make) -> None:
    experiment = make_experiment()
    path = experiment.layout.train_dir("train-lsd") / "loss.csv"
    path.write_text(path.read_text() + "\n3,cut off,,,\nhalf a li")
    curve = loss_curve(path.parent, "train-lsd")
    assert curve is not None
    assert (curve.stage, curve.iterations.tolist()) == ("train-lsd", [1, 2, 2, 3])
    nan = np.nan
    assert list(curve.series) == ["loss", "validation_loss"]
    np.testing.assert_array_equal(curve.series["loss"], [0.5, 0.25, nan, nan])
    np.testing.assert_array_equal(curve.series["validation_loss"], [nan, nan, 0.3, nan])


def test_the_log_of_a_stage_is_the_end_of_that_of_its_newest_run(make_experiment: Make) -> None:
    experiment = make_experiment()
    for name in ("20260101T000000-1", "20260102T000000-1"):
        _outcome(experiment, "agglomerate", name, exit_code=0)
        lines = [f"{name} line {n} in {experiment.layout.root}/store" for n in range(100)]
        (experiment.layout.stage_runs("agglomerate") / name / "log.txt").write_text("\n".join(lines))
    found = stage_record(experiment.layout, "agglomerate", None)
    assert found.log.splitlines() == [f"20260102T000000-1 line {n} in ./store" for n in range(60, 100)]
    assert found.log_path.endswith("20260102T000000-1/log.txt")


@pytest.mark.parametrize(("failing", "state"), [(False, "finished"), (True, "failed")])
def test_the_run_that_writes_the_page_has_the_outcome_that_it_will_have(
    make_experiment: Make, failing: bool, state: str
) -> None:
    experiment = make_experiment()
    _outcome(experiment, "evaluate", f"20260101T000000-{os.getpid()}")
    own = stage_records(report_source(experiment), {}, {}, failing)[-1]
    assert (own.stage, own.state, own.last and own.last.exit_code) == ("evaluate", state, int(failing))
    _outcome(experiment, "evaluate", "20260102T000000-0")
    assert stage_records(report_source(experiment), {}, {}, failing)[-1].state == "unended"


def test_scores_are_reported_again_only_for_the_present_segmentation_and_settings(
    finished: Experiment, copy_of: Make
) -> None:
    experiment = copy_of(finished, "a")
    scores = read_sealed(experiment.layout.report / "scores.json", "")
    assert _present_scores(experiment, EvaluateConfig()) == scores
    assert _present_scores(experiment, EvaluateConfig(picture_edge_vox=64)) == scores
    assert _present_scores(experiment, EvaluateConfig(zeros="ignore")) == {}
    (experiment.layout.report / "index.html").unlink()
    write_report(experiment)
    assert f"{scores['voi']:.3f}" in _index(experiment)
    segment = read_manifest(experiment.layout, "segment")
    segment.model_copy(update={"identity": "another"}).write(experiment.layout)
    assert _present_scores(experiment, EvaluateConfig()) == {}
    write_report(experiment)
    assert "evaluate run makes them" in _index(experiment)


def test_of_a_stage_with_several_passes_the_one_with_the_blocks_of_the_manifest_is_selected(
    make_experiment: Make,
) -> None:
    experiment = make_experiment()
    grid = {"begin_vox": [0, 0, 0], "shape_vox": [18, 24, 26]}
    for key, block in (("counting", [9, 12, 13]), ("later", [18, 24, 26])):
        write_json(
            experiment.layout.stage_runs("evaluate") / "grids" / f"{key}.json", {**grid, "block_shape_vox": block}
        )
    watershed, source = read_manifest(experiment.layout, "watershed"), report_source(experiment)
    found = watershed.model_copy(update={"key": "of its own", "facts": {"blocks": 8}})
    assert select_pass(source, "evaluate", found, ["counting", "later"]) == "counting"
    assert select_pass(source, "evaluate", None, ["counting", "later"]) == "later"
    named = found.model_copy(update={"key": "later"})
    assert select_pass(source, "evaluate", named, ["counting", "later"]) == "later"


def test_of_prepare_the_blocks_of_all_passes_of_the_current_volumes_are_counted(make_experiment: Make) -> None:
    experiment = make_experiment()
    volume, other = "1c0f4a2b" + 56 * "0", "9e77d013" + 56 * "0"
    for key, blocks in ((volume[:-1] + "1", 3), (volume[:-1] + "2", 2), (other, 7)):
        marks = DoneMarks.of(experiment.layout.store, "prepare", key)
        for number in range(blocks):
            marks.mark_done(number, {"seconds": 1.0, "checksums": {}, "facts": {}})
    prepared = read_manifest(experiment.layout, "watershed")
    prepared = prepared.model_copy(update={"inputs": {"target": volume}, "facts": {}})
    found = stage_blocks(report_source(experiment), "prepare", prepared)
    assert found is not None
    assert (found.done, found.failed, found.total, found.states) == (5, 0, 5, None)


def test_the_grid_of_blocks_is_noted_when_their_work_begins(
    make_experiment: Make, scores_now: Callable[[Experiment], dict]
) -> None:
    experiment = make_experiment("a", 'evaluate.block_shape="9, 12, 13 vox"')
    scores_now(experiment)
    works = {path.name for path in (experiment.layout.store / "blocks" / "evaluate").iterdir()}
    keys = [path.stem for path in (experiment.layout.stage_runs("evaluate") / "grids").glob("*.json")]
    assert works <= set(keys)
    grids = [read_grid(experiment.layout, "evaluate", name) for name in keys]
    assert BlockPlan(Box((0, 0, 0), (18, 24, 26)), (9, 12, 13)) in grids
