"""What the report shows of stages: maps of their blocks, their timeline, what they took, and the state of each."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_contract.testing import made
from lsdflow_evaluate.cli import app
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import report_source, write_report
from lsdflow_evaluate.report.collect import loss_curve, run_problems
from lsdflow_evaluate.report.data import BlockState, Resources, StageRecord, StageRun
from lsdflow_evaluate.report.figures import busy_periods, column_means, column_states, map_pictures, timeline
from lsdflow_evaluate.report.stage_records import map_of, select_pass, stage_blocks, stage_record, stage_records
from lsdflow_evaluate.report.words import bytes_words
from lsdflow_evaluate.scores.scores_file import present_result
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.blocks import BlockPlan, read_grid, write_grid
from lsdflow_runtime.store.done_marks import DoneMarks

Make = Callable[..., Experiment]
DONE, RETRIED, MISSING, FAILED = BlockState.DONE, BlockState.RETRIED, BlockState.MISSING, BlockState.FAILED


def test_a_block_map_shows_done_retried_missing_and_failed_blocks_at_their_places() -> None:
    grid = BlockPlan(Box((0, 0, 0), (3, 10, 7)), (2, 5, 4))
    found = map_of(grid, done={0, 1, 5, 99}, failed={6}, again={1, 2, 6}, seconds={0: 1.0, 5: 3.0, 99: 1.0})
    assert found.states.tolist() == [[[DONE, RETRIED], [MISSING, MISSING]], [[MISSING, DONE], [FAILED, MISSING]]]
    assert np.argwhere(np.isfinite(found.seconds)).tolist() == [[0, 0, 0], [1, 0, 1]]


def test_seen_along_z_a_column_shows_its_worst_state_and_the_mean_of_its_known_seconds() -> None:
    states = np.array([[[DONE, RETRIED, DONE]], [[FAILED, DONE, MISSING]]], np.uint8)
    assert column_states(states).tolist() == [[FAILED, RETRIED, MISSING]]
    seconds = np.array([[[1.0, np.nan, np.nan]], [[3.0, 2.0, np.nan]]])
    assert column_means(seconds).tolist()[0][:2] == [2.0, 2.0]
    assert np.isnan(column_means(seconds)[0, 2])


def test_the_picture_of_a_map_has_the_colour_of_each_block_at_its_place() -> None:
    grid = BlockPlan(Box((0, 0, 0), (1, 2, 3)), (1, 1, 1))
    states, seconds = map_pictures(map_of(grid, {0, 1}, {4}, (), {0: 0.5, 1: 2.0}))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(states.uri.split(",")[1]))).convert("RGBA"))[..., :3]
    cell = pixels.shape[0] // 2
    at = pixels[cell // 3 :: cell, cell // 2 :: cell]
    assert len({tuple(at[0, 0]), tuple(at[0, 1])}) == 1
    assert len({tuple(at[0, 0]), tuple(at[1, 1]), tuple(at[0, 2])}) == 3
    assert states.alt == "2 done, 3 missing, 1 failed"
    assert states.aspect == 1.5
    assert "0.5 s to 2 s" in seconds.alt


def _run(stage: str, started: float, seconds: float | None, code: int | None, **more: object) -> StageRun:
    return StageRun(stage, "r", started, seconds, code, **more)  # type: ignore[arg-type]


def test_bars_of_a_timeline_have_the_shares_of_their_run_times_and_their_outcome() -> None:
    stages = [
        StageRecord("prepare", "finished", (_run("prepare", 1000, 10, 0),)),
        StageRecord("predict", "failed", (_run("predict", 1010, 20, 75), _run("predict", 1040, 40, 65))),
        StageRecord("segment", "unended", (_run("segment", 1080, None, None),)),
        StageRecord("evaluate", "not started"),
    ]
    found = timeline(stages, now=1100)
    assert found is not None
    assert [row.stage for row in found.rows] == ["prepare", "predict", "segment"]
    shares = [(round(b.left), round(b.width), b.state) for row in found.rows for b in row.bars]
    assert shares == [(0, 10, "done"), (10, 20, "stopped"), (40, 40, "failed"), (80, 20, "going")]
    assert timeline(stages[3:], now=0) is None


def test_a_pause_longer_than_the_work_is_cut_short_and_marked() -> None:
    assert busy_periods([(0, 10), (12, 20), (5000, 5010)]) == ((0, 20), (5000, 5010))
    runs = (_run("predict", 0, 20, 0), _run("predict", 5000, 10, 0))
    found = timeline([StageRecord("predict", "finished", runs)], now=0)
    assert found is not None
    first, second = found.rows[0].bars
    assert first.width == pytest.approx(2 * second.width)
    assert first.width + second.width > 90
    assert found.ticks[-1][1].startswith("‖")


def test_marks_of_a_timeline_never_overlap() -> None:
    runs = tuple(_run("predict", begin, 3, 0) for begin in (0, 900, 1800, 9000, 9003, 90_000, 200_000, 10**6))
    found = timeline([StageRecord("predict", "finished", runs)], now=0)
    assert found is not None
    places = [left for left, _ in found.ticks]
    assert len(places) >= 4
    assert min(b - a for a, b in itertools.pairwise(places)) >= 12


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


def test_a_report_at_any_moment_has_a_page_for_every_stage_and_counts_nothing(make_experiment: Make) -> None:
    experiment = make_experiment()
    experiment.layout.manifest("segment").unlink()
    assert write_report(experiment, refresh_s=60) == []
    pages = {path.stem for path in experiment.layout.report.glob("*.html")}
    assert pages == {
        *("index", "prepare", "train-lsd", "train-acrlsd", "predict"),
        *("watershed", "agglomerate", "segment", "evaluate"),
    }
    index = (experiment.layout.report / "index.html").read_text()
    assert '<meta http-equiv="refresh" content="60">' in index
    assert "nothing is segmented yet" in index
    assert 'id="errors"' not in index
    assert not (experiment.layout.store / "blocks" / "evaluate").exists()
    assert not (experiment.layout.report / "scores.json").exists()


def test_the_command_report_names_what_it_could_not_read_and_writes_the_pages_all_the_same(
    make_experiment: Make,
) -> None:
    experiment = make_experiment()
    chunk = next(p for p in (made(experiment.layout, "segment") / "volumes/segmentation/c").rglob("*") if p.is_file())
    chunk.unlink()
    done = CliRunner().invoke(app, ["report", "-e", str(experiment.path)])
    assert done.exit_code == BadData.exit_code
    pages = {path.stem for path in experiment.layout.report.glob("*.html") if 'id="errors"' in path.read_text()}
    assert pages == {"index", "segment"}


def _pages_with_blocks(experiment: Experiment) -> set[str]:
    return {path.stem for path in experiment.layout.report.glob("*.html") if "state of the blocks" in path.read_text()}


def test_a_damaged_done_mark_of_a_stage_leaves_the_blocks_of_the_others_on_the_page(
    finished: Experiment, copy_of: Make
) -> None:
    experiment = copy_of(finished, "a")
    key = read_manifest(experiment.layout, "watershed").key
    write_grid(experiment.layout, "watershed", key, BlockPlan(Box((0, 0, 0), (18, 24, 26)), (18, 24, 26)))
    assert write_report(experiment) == []
    assert _pages_with_blocks(experiment) == {"index", "watershed", "evaluate"}
    mark = next((experiment.layout.store / "blocks" / "watershed" / key).rglob("*.json"))
    mark.write_text("{")
    assert [str(mark) in error.where for error in write_report(experiment)] == [True]
    assert _pages_with_blocks(experiment) == {"index", "evaluate"}


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
    assert f"{scores['voi']:.3f}" in (experiment.layout.report / "index.html").read_text()
    segment = read_manifest(experiment.layout, "segment")
    segment.model_copy(update={"identity": "another"}).write(experiment.layout)
    assert _present_scores(experiment, EvaluateConfig()) == {}
    write_report(experiment)
    assert "evaluate run makes them" in (experiment.layout.report / "index.html").read_text()


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
    assert (found.done, found.failed, found.total, found.map) == (5, 0, 5, None)


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
