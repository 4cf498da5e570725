"""Selection of a checkpoint: the base of its sweep, resume, follow, the choice; the stages are fakes."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.checkpoint import (
    BUNDLE_JSON,
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    Calibration,
    UNetSpec,
    bundle_folder,
    read_best,
    write_best,
)
from lsdflow_contract.errors import BadData, ConfigError, Interrupted, MissingInput, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.sealing import write_sealed
from lsdflow_launch.checkpoint_selection import selection as selection_module
from lsdflow_launch.checkpoint_selection.automatic import may_select, select_before_predict
from lsdflow_launch.checkpoint_selection.region import base_text, find_region, region_of
from lsdflow_launch.checkpoint_selection.selection import Selection, run_folder
from lsdflow_launch.cli import app

STAGE = "train-acrlsd"
STAGES_OF_A_RUN = ("predict", "watershed", "agglomerate", "segment", "evaluate")
FACTS = {
    "raw_shape_vox": [100, 40, 50],
    "labels_begin_vox": [10, 5, 0],
    "labels_shape_vox": [80, 30, 50],
    "held_out_sections": 8,
}
TABLES = """[experiment]
name = "small"
mode = "affinities"
[store]
engine = "mongo"
[compute]
runner = "cluster"
workers = 3
[predict]
checkpoint = "best"
roi = { begin = "0 vox", shape = "9 vox" }
outside = "zero"
[watershed]
min_seed_distance_vox = 6
mask_file = "mask.zarr"
[segment]
threshold = 0.3
thresholds_step = 0.1
[evaluate]
zeros = "ignore"
voi_limit = 1.5
"""
REGION = region_of("a", FACTS)


def leave_manifest(experiment: Experiment, stage: str, held_out: float = 0.0, **inputs: str) -> None:
    """The manifest of a finished stage."""
    facts: dict[str, Any] = {"key": "k", "config": {}, "outputs": {}, "identity": f"{stage}-1"}
    facts["facts"] = {"validation_fraction": held_out}
    Manifest(writer=Writer.of(stage), inputs=inputs, **facts).write(experiment.layout)


def leave_checkpoint(experiment: Experiment, iteration: int, stage: str = STAGE, **changes: Any) -> Bundle:
    """A checkpoint as a training leaves it; its weights are its iteration."""
    weights = f"weights of {iteration}".encode()
    fields: dict[str, Any] = {
        "writer": Writer.of(stage),
        "kind": "affinities",
        "iteration": iteration,
        "unet": UNetSpec(in_channels=1, num_fmaps=1, fmap_inc_factor=1, downsample_factors=()),
        "outputs": {"affs": 3},
        "train_input_shape_vox": (20, 20, 20),
        "train_output_shape_vox": (8, 8, 8),
        "predict_input_shape_vox": (24, 24, 24),
        "predict_output_shape_vox": (12, 12, 12),
        "voxel_size_nm": (8.0, 8.0, 8.0),
        "validation_loss": 0.1,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    bundle = Bundle(**{**fields, **changes})
    folder = bundle_folder(experiment.layout.checkpoints(stage), iteration)
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(weights)
    (folder / BUNDLE_JSON).write_text(bundle.model_dump_json())
    return bundle


@dataclass
class StandIn:
    """In place of the stages' commands: each leaves a manifest and a file, evaluate also scores; some may fail."""

    voi: dict[int, float]
    codes: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[int, str]] = field(default_factory=list)
    before: Callable[[int, str], object] = lambda iteration, stage: None
    outcomes: bool = True

    def __call__(self, stage: str, arguments: Sequence[str]) -> int:
        if arguments[0] == "report":
            return 0
        run = load_experiment(Path(arguments[-1]))
        folder, checkpoint = run.path.parent, run.resolve(run.tables["predict"]["checkpoint"])
        iteration = 0 if folder.name == "base" else int(checkpoint.name)
        self.calls.append((iteration, stage))
        self.before(iteration, stage)
        if stage in self.codes:
            if self.outcomes:
                write_json(run.layout.stage_runs(stage) / "1" / "outcome.json", {"exit_code": self.codes[stage]})
            return self.codes[stage]
        (folder / "luts").mkdir(exist_ok=True)
        (folder / "luts" / stage).touch()
        network = json.loads((checkpoint / BUNDLE_JSON).read_text())["weights_sha256"] if stage == "predict" else ""
        leave_manifest(run, stage, **({"network": network} if network else {}))
        if stage == "segment":
            lowest = {"mean": {"threshold": 0.4, "voi": 0.9}, "median": {"threshold": 0.2, "voi": 0.8}}
            segment = read_manifest(run.layout, stage)
            segment.facts["lowest_voi"] = lowest
            segment.write(run.layout)
        if stage == "evaluate":
            self._score(folder, iteration)
        return 0

    def _score(self, folder: Path, iteration: int) -> None:
        voi = self.voi[iteration]
        scores = {
            "voi": voi,
            "voi_split": voi / 4,
            "voi_merge": 3 * voi / 4,
            "threshold": 0.4,
            "merge_function": "mean",
        }
        write_sealed(folder / "report" / "scores.json", scores)

    @property
    def checked(self) -> list[int]:
        """The iterations that were predicted, in order."""
        return [iteration for iteration, stage in self.calls if stage == "predict"]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment that has been prepared, with checkpoints 10, 20 and 30 in the current training, which is a link."""
    (tmp_path / "experiment.toml").write_text(TABLES)
    loaded = load_experiment(tmp_path)
    leave_manifest(loaded, "prepare")
    (tmp_path / "results" / STAGE / "0a0a0a0a").mkdir(parents=True)
    loaded.layout.train_dir(STAGE).parent.mkdir()
    loaded.layout.train_dir(STAGE).symlink_to(f"../results/{STAGE}/0a0a0a0a")
    for iteration in (10, 20, 30):
        leave_checkpoint(loaded, iteration)
    return loaded


def selection_of(experiment: Experiment, caller: StandIn, **options: Any) -> Selection:
    return Selection(experiment, REGION, caller=caller, **options)


def table_of(selection: Selection) -> list[dict[str, str]]:
    with selection.table.with_name("runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_region_is_the_end_that_the_training_held_out() -> None:
    assert (REGION.box, REGION.held_out) == (Box((82, 5, 0), (8, 30, 50)), True)
    assert REGION.words.startswith("held out: a")
    assert REGION.with_context(15) == Box((67, 0, 0), (33, 40, 50))


def test_without_a_held_out_end_the_region_is_described_as_trained_on() -> None:
    whole = region_of("a", {**FACTS, "held_out_sections": 0})
    assert (whole.box, whole.held_out) == (Box((10, 5, 0), (80, 30, 50)), False)
    assert whole.words.startswith("trained on: a")
    large = region_of("a", {**FACTS, "labels_shape_vox": [400, 512, 512], "held_out_sections": 0})
    assert large.box == Box((346, 5, 0), (64, 512, 512))


def test_the_region_is_the_middle_of_a_large_held_out_end() -> None:
    large = region_of("a", {**FACTS, "labels_shape_vox": [400, 2048, 1024], "held_out_sections": 32})
    assert large.box == Box((378, 517, 256), (32, 1024, 512))
    assert large.held_out


def test_the_region_comes_from_the_training(experiment: Experiment) -> None:
    regions = {"a": FACTS, "b": {**FACTS, "labels_shape_vox": [0, 0, 0]}}
    answers: dict[str, Any] = {"plan": {"regions": regions}}

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        assert stage == STAGE
        return answers[arguments[0]]

    assert find_region(experiment, None, ask) == find_region(experiment, "a", ask) == REGION
    with pytest.raises(ConfigError, match="no training volume"):
        find_region(experiment, "c", ask)
    with pytest.raises(BadData, match="no labels"):
        find_region(experiment, "b", ask)
    answers["plan"] = {"exit_code": 66, "what": "prepare has not finished", "where": "there"}
    with pytest.raises(StageError, match="prepare has not finished") as raised:
        find_region(experiment, None, ask)
    assert raised.value.exit_code == 66
    answers["plan"] = {"nothing_to_do": "[predict] names a trained network"}
    with pytest.raises(MissingInput, match="trains no network") as raised:
        find_region(experiment, None, ask)
    assert raised.value.found == "[predict] names a trained network"


def test_a_checkpoint_whose_scores_are_lost_is_segmented_again(experiment: Experiment) -> None:
    stages = StandIn({10: 2.0, 20: 1.0, 30: 3.0})
    selection = selection_of(experiment, stages)
    assert selection.update() == 0
    (run_folder(selection.folder, 20) / "report" / "scores.json").unlink()
    assert selection.update() == 0
    assert stages.checked == [10, 20, 30, 20]
    assert [row["voi"] for row in table_of(selection)] == ["2.0", "1.0", "3.0"]
    assert "held out: a" in selection.table.read_text()


def test_the_base_has_the_post_processing_of_the_experiment_but_nothing_of_its_target(
    experiment: Experiment,
) -> None:
    (experiment.layout.training_volume("a") / "volumes/labels/mask").mkdir(parents=True)
    bundle = leave_checkpoint(experiment, 40)
    folder = experiment.layout.train_dir(STAGE).resolve() / "selection" / "settings" / "base"
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(base_text(experiment, REGION, bundle, folder))
    written = load_experiment(folder)
    target, predict = written.tables["prepare"]["target"], written.tables["predict"]
    assert written.resolve(target["raw"]) == experiment.layout.training_volume("a")
    assert written.resolve(target["mask"]) == written.resolve(target["truth"]) == written.resolve(target["raw"])
    assert target["roi"] == {"offset": "76, 0, 0 vox", "shape": "20, 40, 50 vox"}
    assert predict["roi"] == {"begin": "6, 5, 0 vox", "shape": "8, 30, 50 vox"}
    assert written.resolve(predict["checkpoint"]) == bundle_folder(folder.parents[2] / "checkpoints", 40)
    assert predict["outside"] == "zero"
    assert written.tables["watershed"] == {"min_seed_distance_vox": 6}
    assert written.tables["segment"] == {"threshold": "auto", "advice": "truth", "thresholds_step": 0.1}
    assert written.tables["evaluate"] == {"voi_limit": 1.5, "skeletons": "none"}, (
        "zeros count, or nothing costs nothing"
    )
    assert (written.store.engine, written.compute.runner, written.compute.workers) == ("files", "daisy", 3)
    assert written.stages == ("prepare", *STAGES_OF_A_RUN), "no training"
    assert "held out: a" in (folder / "experiment.toml").read_text()


def test_an_acrlsd_network_is_scored_behind_the_lsd_network_it_was_trained_with(experiment: Experiment) -> None:
    acrlsd = load_experiment(experiment.path, ["experiment.mode=acrlsd"])
    lsds = {i: leave_checkpoint(acrlsd, i, "train-lsd", kind="lsd", outputs={"lsds": 10}) for i in (3, 4)}
    bundle = leave_checkpoint(acrlsd, 40, kind="acrlsd", lsd_bundle_sha256=lsds[3].weights_sha256)
    folder = acrlsd.layout.train_dir(STAGE).resolve() / "selection" / "settings" / "base"
    text = base_text(acrlsd, REGION, bundle, folder)
    assert "train-lsd/checkpoints/00000003" in text
    assert 'offset = "70, 0, 0 vox"' in text, "the context of both networks"
    with pytest.raises(MissingInput, match="LSD network"):
        base_text(acrlsd, REGION, bundle.model_copy(update={"lsd_bundle_sha256": "gone"}), folder)


def test_each_run_of_an_acrlsd_experiment_names_its_own_lsd_network(experiment: Experiment) -> None:
    acrlsd = load_experiment(experiment.path, ["experiment.mode=acrlsd"])
    shutil.rmtree(acrlsd.layout.checkpoints(STAGE))
    for iteration in (3, 4):
        lsd = leave_checkpoint(acrlsd, iteration, "train-lsd", kind="lsd", outputs={"lsds": 10})
        leave_checkpoint(acrlsd, 10 * iteration, kind="acrlsd", lsd_bundle_sha256=lsd.weights_sha256)
    selection = selection_of(acrlsd, StandIn({30: 2.0, 40: 1.0}))
    assert selection.update() == 0
    for iteration in (3, 4):
        run = load_experiment(run_folder(selection.folder, 10 * iteration))
        lsd_folder = run.resolve(run.tables["predict"]["lsd_checkpoint"])
        assert lsd_folder == bundle_folder(acrlsd.layout.checkpoints("train-lsd"), iteration)
        assert run.stages == ("prepare", *STAGES_OF_A_RUN)


def test_every_checkpoint_is_a_run_and_the_lowest_voi_becomes_the_best(experiment: Experiment) -> None:
    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5})
    selection = selection_of(experiment, caller)
    assert selection.update() == 0
    assert caller.calls == [(0, "prepare"), *((i, s) for i in (10, 20, 30) for s in STAGES_OF_A_RUN)]
    rows = [(row["iteration"], row["voi"], row["threshold"], row["status"]) for row in table_of(selection)]
    assert rows == [("10", "2.0", "0.4", "done"), ("20", "1.0", "0.4", "done"), ("30", "1.5", "0.4", "done")]
    assert selection.table.exists()
    best = read_best(experiment.layout.best_checkpoint(STAGE))
    assert (best.iteration, best.chosen_by, best.voi, best.validation_loss) == (20, "voi", 1.0, 0.1)
    assert best.weights_sha256 == hashlib.sha256(b"weights of 20").hexdigest()
    thresholds = {"mean": 0.4, "median": 0.2}
    assert best.calibration == Calibration(thresholds=thresholds, voxels=8 * 30 * 50, on=REGION.words)
    assert best.merge_function == "median", "the lower VOI of its run"


def test_no_threshold_is_kept_that_was_chosen_on_trained_sections(experiment: Experiment) -> None:
    trained = replace(REGION, held_out=False)
    assert Selection(experiment, trained, caller=StandIn({10: 2.0, 20: 1.0, 30: 1.5})).update() == 0
    best = read_best(experiment.layout.best_checkpoint(STAGE))
    assert (best.calibration, best.merge_function) == (None, None)


def test_a_finished_run_leaves_its_report_and_no_arrays_unless_kept(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    selection_of(experiment, StandIn(voi), keep=False, every=20).update()
    selection = selection_of(experiment, StandIn(voi), keep=True)
    selection.update()
    folders = {i: run_folder(selection.folder, i) for i in (10, 20, 30)}
    assert all((folder / "report" / "scores.json").exists() for folder in folders.values())
    assert {i: (folder / "luts").exists() for i, folder in folders.items()} == {10: True, 20: False, 30: True}


def test_a_scored_checkpoint_is_scored_again_only_with_other_settings(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    selection_of(experiment, StandIn(voi)).update()
    selection_of(experiment, again := StandIn(voi)).update()
    assert again.calls == []
    other = load_experiment(experiment.path, ["watershed.min_seed_distance_vox=9"])
    selection_of(other, later := StandIn({10: 0.5, 20: 3.0, 30: 3.0})).update()
    assert later.checked == [10, 20, 30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 10
    selection_of(load_experiment(experiment.path, ["compute.workers=9"]), same := StandIn(voi)).update()
    assert same.calls == []
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_checkpoint_of_the_same_iteration_with_other_weights_is_scored_again(experiment: Experiment) -> None:
    selection_of(experiment, StandIn({10: 2.0, 20: 1.0, 30: 1.5})).update()
    folder = bundle_folder(experiment.layout.checkpoints(STAGE), 20)
    shutil.rmtree(folder)
    leave_checkpoint(experiment, 20, weights_sha256=hashlib.sha256(b"other").hexdigest())
    (folder / WEIGHTS).write_bytes(b"other")
    selection_of(experiment, caller := StandIn({20: 9.0})).update()
    assert caller.checked == [20]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30


def test_an_interrupted_run_resumes_in_its_folder(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    interrupted = selection_of(experiment, StandIn(voi, codes={"watershed": 75}))
    with pytest.raises(Interrupted):
        interrupted.update()
    assert not experiment.layout.best_checkpoint(STAGE).exists()
    assert (run_folder(interrupted.folder, 10) / "luts" / "predict").exists()
    again = StandIn(voi)
    assert selection_of(experiment, again).update() == 0
    assert again.calls[0] == (10, "watershed"), "what the first run predicted is used"
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_failed_run_gives_its_exit_code_and_runs_again_the_next_time(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    selection = selection_of(experiment, StandIn(voi, codes={"segment": 79}))
    assert selection.update() == 79
    assert {row["status"] for row in table_of(selection)} == {"failed"}
    assert not experiment.layout.best_checkpoint(STAGE).exists()
    assert selection_of(experiment, again := StandIn(voi)).update() == 0
    assert again.calls == [(i, s) for i in (10, 20, 30) for s in ("segment", "evaluate")]


@pytest.mark.parametrize(("begun", "code"), [(True, 137), (False, 79)])
def test_a_stage_that_is_killed_or_never_begins_is_a_failure(experiment: Experiment, begun: bool, code: int) -> None:
    def begin(iteration: int, stage: str) -> None:
        """Leave what a stage leaves that is killed after it has begun."""
        if begun and stage == "segment":
            run = run_folder(selection.folder, iteration)
            write_json(run / "runs" / "segment" / "1" / "config.resolved.json", {})

    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5}, codes={"segment": 137}, before=begin, outcomes=False)
    selection = selection_of(experiment, caller)
    assert selection.update() == code
    assert not experiment.layout.best_checkpoint(STAGE).exists()


def test_a_run_that_another_process_computes_is_not_waited_for(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    selection = selection_of(experiment, StandIn(voi))
    with experiment_lock(ExperimentLayout(run_folder(selection.folder, 10))):
        assert selection.update() == 73
    assert selection_of(experiment, again := StandIn(voi)).update() == 0
    assert again.checked == [10]


def test_a_damaged_checkpoint_is_left_out_and_one_deleted_meanwhile_is_no_failure(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = experiment.layout.checkpoints(STAGE)
    (bundle_folder(checkpoints, 20) / WEIGHTS).write_bytes(b"damaged")
    caller = StandIn({10: 2.0, 20: 1.0, 30: 3.0}, codes={})

    def delete(iteration: int, stage: str) -> None:
        if (iteration, stage) == (10, "predict"):
            shutil.rmtree(bundle_folder(checkpoints, 10))
            caller.codes["predict"] = 66
        elif iteration != 10:
            caller.codes.clear()

    caller.before = delete
    assert selection_of(experiment, caller).update() == 0
    assert caller.checked == [10, 30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30
    assert "weights are damaged" in caplog.text
    assert "deleted it meanwhile" in caplog.text


def test_the_table_keeps_checkpoints_that_the_training_has_deleted_but_none_of_them_is_chosen(
    experiment: Experiment,
) -> None:
    selection_of(experiment, StandIn({10: 1.0, 20: 2.0, 30: 3.0})).update()
    shutil.rmtree(bundle_folder(experiment.layout.checkpoints(STAGE), 10))
    leave_checkpoint(experiment, 40)
    selection = selection_of(experiment, caller := StandIn({40: 4.0}))
    assert selection.update() == 0
    assert caller.checked == [40]
    assert [row["iteration"] for row in table_of(selection)] == ["10", "20", "30", "40"]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_every_takes_multiples_and_what_a_finished_training_ended_with(experiment: Experiment) -> None:
    voi = dict.fromkeys((10, 20, 30), 1.0)
    selection_of(experiment, first := StandIn(voi), every=20).update()
    assert first.checked == [20]
    leave_manifest(experiment, STAGE)
    selection_of(experiment, then := StandIn(voi), every=20).update()
    assert then.checked == [30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30, "the newest of equal ones"


def test_follow_waits_for_new_checkpoints_and_ends_with_the_training(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(TABLES)
    experiment = load_experiment(tmp_path)
    leave_manifest(experiment, "prepare")
    caller = StandIn({10: 2.0, 20: 3.0, 30: 1.0})
    seen: list[list[int]] = []

    def train_on(_seconds: float) -> None:
        """What the training elsewhere does at the same time; it makes its folder itself."""
        assert experiment.layout.train_dir(STAGE).exists() == bool(seen)
        seen.append(list(caller.checked))
        leave_checkpoint(experiment, 10 * len(seen))
        if len(seen) == 3:
            leave_manifest(experiment, STAGE)

    assert selection_of(experiment, caller).follow(train_on) == 0
    assert seen == [[], [10], [10, 20]]
    assert caller.checked == [10, 20, 30]
    assert caller.calls.count((0, "prepare")) == 1, "the region is prepared once"
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30


def test_two_at_once_and_a_training_without_checkpoints_are_refused(experiment: Experiment) -> None:
    selection = selection_of(experiment, StandIn({10: 1.0, 20: 1.0, 30: 1.0}))
    refused: list[str] = []

    def second(_iteration: int, _stage: str) -> None:
        with pytest.raises(OutputConflict, match="at work") as raised:
            selection.update()
        refused.append(raised.value.what)

    selection_of(experiment, StandIn({10: 1.0, 20: 1.0, 30: 1.0}, before=second), every=30).update()
    assert len(refused) == 1 + len(STAGES_OF_A_RUN)
    experiment.layout.train_dir(STAGE).unlink()
    with pytest.raises(MissingInput, match="no checkpoints"):
        selection.update()
    assert not experiment.layout.train_dir(STAGE).exists()


def test_a_region_without_scored_labels_is_reported(experiment: Experiment) -> None:
    caller = StandIn({10: 1.0, 20: 1.0, 30: 1.0})
    caller._score = lambda folder, _iteration: write_sealed(  # type: ignore[method-assign]
        folder / "report" / "scores.json", {"has_truth": True, "voi": None}
    )
    with pytest.raises(BadData, match="no scores"):
        selection_of(experiment, caller).update()
    assert not experiment.layout.best_checkpoint(STAGE).exists()


def test_a_score_of_earlier_weights_chooses_no_checkpoint_of_the_same_iteration(experiment: Experiment) -> None:
    voi = {10: 1.0, 20: 2.0, 30: 3.0}
    selection_of(experiment, StandIn(voi)).update()
    folder = bundle_folder(experiment.layout.checkpoints(STAGE), 10)
    shutil.rmtree(folder)
    leave_checkpoint(experiment, 10, weights_sha256=hashlib.sha256(b"other").hexdigest())
    (folder / WEIGHTS).write_bytes(b"other")
    selection_of(experiment, caller := StandIn(voi), every=20).update()
    assert caller.checked == [], "iteration 10 is not one of every 20"
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_failed_run_of_a_checkpoint_that_is_not_asked_for_is_not_repeated(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    assert selection_of(experiment, StandIn(voi, codes={"segment": 79})).update() == 79
    selection_of(experiment, caller := StandIn(voi), every=20).update()
    assert {iteration for iteration, _ in caller.calls} == {20}


def test_no_choice_is_an_error_when_all_scored_checkpoints_are_gone(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    checkpoints = experiment.layout.checkpoints(STAGE)

    def delete(iteration: int, stage: str) -> None:
        """What a training does that keeps few checkpoints."""
        if stage == "evaluate":
            shutil.rmtree(bundle_folder(checkpoints, iteration))

    with pytest.raises(MissingInput, match="no scored checkpoint is there"):
        selection_of(experiment, StandIn(voi, before=delete)).update()
    assert not experiment.layout.best_checkpoint(STAGE).exists()


def test_follow_goes_on_when_the_training_has_deleted_all_scored_checkpoints(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = experiment.layout.checkpoints(STAGE)

    def delete(iteration: int, stage: str) -> None:
        """What a training does that keeps few checkpoints."""
        if stage == "evaluate" and iteration < 40:
            shutil.rmtree(bundle_folder(checkpoints, iteration))

    def train_on(_seconds: float) -> None:
        """What the training does at the same time."""
        leave_checkpoint(experiment, 40)
        leave_manifest(experiment, STAGE)

    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5, 40: 3.0}, before=delete)
    assert selection_of(experiment, caller).follow(train_on) == 0
    assert caller.checked == [10, 20, 30, 40]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 40
    assert "no scored checkpoint is there" in caplog.text


def test_follow_scores_a_checkpoint_that_the_training_ends_with_during_an_update(experiment: Experiment) -> None:
    def end_training(iteration: int, stage: str) -> None:
        """What the training does while the last run of an update is made."""
        if (iteration, stage) == (30, "evaluate"):
            leave_checkpoint(experiment, 40)
            leave_manifest(experiment, STAGE)

    caller = StandIn({10: 2.0, 20: 3.0, 30: 4.0, 40: 1.0}, before=end_training)
    assert selection_of(experiment, caller).follow(lambda _seconds: None) == 0
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 40


def test_the_results_and_the_store_of_a_run_are_removed_as_well(experiment: Experiment) -> None:
    def leave_arrays(iteration: int, stage: str) -> None:
        """What the stages of a run leave beside its report."""
        if iteration and stage == "evaluate":
            layout = load_experiment(run_folder(selection.folder, iteration)).layout
            for path in (layout.results, layout.luts, layout.store):
                (path / "array").mkdir(parents=True, exist_ok=True)

    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5}, before=leave_arrays)
    selection = selection_of(experiment, caller)
    assert selection.update() == 0
    layout = load_experiment(run_folder(selection.folder, 10)).layout
    assert [path.exists() for path in (layout.results, layout.luts, layout.store)] == [False, False, False]


def test_scores_of_other_volumes_regions_and_modes_are_kept_apart(experiment: Experiment) -> None:
    def folder_of(loaded: Experiment, volume: str = "a") -> Path:
        return Selection(loaded, region_of(volume, FACTS)).folder

    first = folder_of(experiment)
    assert folder_of(load_experiment(experiment.path)) == first
    other_mode = load_experiment(experiment.path, ["experiment.mode=mtlsd"])
    shorter = Selection(experiment, region_of("a", {**FACTS, "held_out_sections": 7})).folder
    found = [first, folder_of(experiment, "b"), folder_of(other_mode), shorter]
    facts: dict[str, Any] = {"key": "k", "config": {}, "inputs": {}, "outputs": {}, "identity": "prepare-2"}
    Manifest(writer=Writer.of("prepare"), **facts).write(experiment.layout)
    assert len({*found, folder_of(experiment)}) == 5


def test_the_region_of_huge_sections_is_the_middle_of_one_section() -> None:
    huge = region_of("a", {**FACTS, "labels_shape_vox": [80, 5000, 5000], "held_out_sections": 0})
    assert huge.box == Box((89, 457, 452), (1, 4096, 4096))


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("evaluate", "regions", '"regions"'),
        ("evaluate", "roi", '{ begin = "0 vox", shape = "9 vox" }'),
        ("evaluate", "truth_dataset", '"labels"'),
        ("segment", "truth_roi", '{ begin = "0 vox", shape = "9 vox" }'),
        ("segment", "roi", '{ begin = "0 vox", shape = "9 vox" }'),
        ("predict", "mask", '"mask.zarr"'),
    ],
)
def test_a_region_or_file_of_the_target_is_not_in_the_base(
    experiment: Experiment, table: str, key: str, value: str
) -> None:
    text = TABLES.replace(f"[{table}]\n", f"[{table}]\n{key} = {value}\n")
    experiment.path.write_text(text)
    bundle = leave_checkpoint(experiment, 40)
    folder = experiment.layout.train_dir(STAGE).resolve() / "selection" / "settings" / "base"
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(base_text(load_experiment(experiment.path), REGION, bundle, folder))
    assert key not in load_experiment(folder).tables[table]


def test_the_options_of_the_command_reach_the_selection(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str, int, bool]] = []

    def note(verb: str) -> Callable[[Selection], int]:
        def call(selection: Selection) -> int:
            """Note with what the selection was made; 5 is an exit code of nothing else."""
            made.append((verb, selection.region.volume, selection.every, selection.keep))
            return 5

        return call

    monkeypatch.setattr(selection_module, "ask_stage", lambda *_: {"regions": {"a": FACTS, "b": FACTS}})
    monkeypatch.setattr(Selection, "update", note("update"))
    monkeypatch.setattr(Selection, "follow", note("follow"))
    folder = str(experiment.path.parent)
    for options in ((), ("--every", "20", "--volume", "b"), ("--follow", "--keep")):
        assert CliRunner().invoke(app, ["select-checkpoint", folder, *options]).exit_code == 5
    assert made == [("update", "a", 1, False), ("update", "b", 20, False), ("follow", "a", 1, True)]


@pytest.fixture
def trained(experiment: Experiment) -> Experiment:
    """Trained, with sections held out; the training chose iteration 30 by its loss."""
    best = BestCheckpoint(iteration=30, weights_sha256=hashlib.sha256(b"weights of 30").hexdigest())
    write_best(experiment.layout.best_checkpoint(STAGE), best)
    leave_manifest(experiment, STAGE, held_out=0.1)
    return load_experiment(experiment.path, ["predict.checkpoint=best"])


def plan_of_the_training(_stage: str, _arguments: Sequence[str]) -> Any:
    return {"regions": {"a": FACTS}}


def test_before_predict_a_checkpoint_is_chosen_once(trained: Experiment) -> None:
    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5})
    assert select_before_predict(trained, caller, plan_of_the_training) == 0
    best = read_best(trained.layout.best_checkpoint(STAGE))
    assert (best.iteration, best.chosen_by, caller.checked) == (20, "voi", [10, 20, 30])
    assert best.calibration is not None
    assert select_before_predict(trained, again := StandIn({}), lambda *_: pytest.fail("asked again")) == 0
    assert again.calls == []


def test_an_interrupted_choice_before_predict_ends_the_run_and_resumes(trained: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    assert select_before_predict(trained, StandIn(voi, codes={"watershed": 75}), plan_of_the_training) == 75
    assert read_best(trained.layout.best_checkpoint(STAGE)).iteration == 30
    assert select_before_predict(trained, again := StandIn(voi), plan_of_the_training) == 0
    assert again.calls[0] == (10, "watershed")
    assert read_best(trained.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_choice_before_predict_that_fails_leaves_that_of_the_training_and_says_so(
    trained: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    failing = StandIn({10: 2.0, 20: 1.0, 30: 1.5}, codes={"segment": 79})
    assert select_before_predict(trained, failing, plan_of_the_training) == 0
    assert "exit code 79" in caplog.text
    no_labels = {"regions": {"a": {**FACTS, "labels_shape_vox": [0, 0, 0]}}}
    assert select_before_predict(trained, StandIn({}), lambda *_: no_labels) == 0
    assert "no labels" in caplog.text
    best = read_best(trained.layout.best_checkpoint(STAGE))
    assert (best.iteration, best.chosen_by) == (30, "loss")


def test_nothing_is_chosen_before_predict_without_held_out_sections_or_with_a_checkpoint_of_the_user(
    trained: Experiment,
) -> None:
    of_user = load_experiment(trained.path, ["predict.checkpoint=10"])
    assert [may_select(e) for e in (trained, of_user)] == [True, False]
    leave_manifest(trained, STAGE, held_out=0.0)
    assert select_before_predict(trained, StandIn({}), lambda *_: pytest.fail("asked")) == 0
    all_trained = load_experiment(trained.path, [f"{STAGE}.validation_fraction=0"])
    assert [may_select(e, after_training=True) for e in (trained, all_trained, of_user)] == [True, False, False]
