"""Checks of checkpoints: the experiment file of a check, resume, follow, the choice; the stages are fakes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.checkpoint import BUNDLE_JSON, WEIGHTS, Bundle, UNetSpec, bundle_folder, read_best
from lsdflow_contract.errors import BadData, ConfigError, MissingInput, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_launch.checkpoint_check.checks import STAGES_OF_A_CHECK, Checks, read_rows
from lsdflow_launch.checkpoint_check.experiment import check_folder, check_text, find_region, region_of

STAGE = "train-acrlsd"
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


def leave_manifest(experiment: Experiment, stage: str, **inputs: str) -> None:
    """The manifest of a finished stage."""
    facts: dict[str, Any] = {"key": "k", "config": {}, "outputs": {}, "identity": f"{stage}-1"}
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
    """In place of the stages' commands: evaluate leaves scores, each stage leaves a file; some may fail."""

    voi: dict[int, float]
    codes: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[int, str]] = field(default_factory=list)
    before: Callable[[int, str], object] = lambda iteration, stage: None

    def __call__(self, stage: str, arguments: Sequence[str]) -> int:
        folder = Path(arguments[-1]).parent
        iteration = int(folder.name)
        self.calls.append((iteration, stage))
        self.before(iteration, stage)
        if stage in self.codes:
            return self.codes[stage]
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / stage).touch()
        if stage == "evaluate":
            self._score(folder, iteration)
        return 0

    def _score(self, folder: Path, iteration: int) -> None:
        rows = [
            {"merge_function": name, "threshold": t, "voi": v, "voi_split": v / 4, "voi_merge": 3 * v / 4}
            for name, t, v in (
                ("mean", 0.2, self.voi[iteration] + 1),
                ("mean", 0.4, self.voi[iteration]),
                ("max", 0.9, 0.0),
            )
        ]
        scores = [{**row, "adapted_rand_error": 0.5} for row in rows]
        (folder / "report").mkdir(exist_ok=True)
        (folder / "report" / "scores.json").write_text(json.dumps({"merge_function": "mean", "thresholds": scores}))

    @property
    def checked(self) -> list[int]:
        return [iteration for iteration, stage in self.calls if stage == STAGES_OF_A_CHECK[0]]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment that has been prepared, with checkpoints 10, 20 and 30."""
    (tmp_path / "experiment.toml").write_text(TABLES)
    loaded = load_experiment(tmp_path)
    leave_manifest(loaded, "prepare")
    for iteration in (10, 20, 30):
        leave_checkpoint(loaded, iteration)
    return loaded


def checks_of(experiment: Experiment, caller: StandIn, **options: Any) -> Checks:
    return Checks(experiment, REGION, caller=caller, **options)


def test_the_checked_region_is_the_end_that_the_training_held_out() -> None:
    assert (REGION.box, REGION.held_out) == (Box((82, 5, 0), (8, 30, 50)), True)
    assert REGION.words.startswith("held out: a")
    assert REGION.with_context(15) == Box((67, 0, 0), (33, 40, 50))


def test_without_a_held_out_end_the_volume_is_checked_and_said_to_be_trained_on() -> None:
    whole = region_of("a", {**FACTS, "held_out_sections": 0})
    assert (whole.box, whole.held_out) == (Box((10, 5, 0), (80, 30, 50)), False)
    assert whole.words.startswith("trained on: a")
    large = region_of("a", {**FACTS, "labels_shape_vox": [400, 512, 512], "held_out_sections": 0})
    assert large.box == Box((346, 5, 0), (64, 512, 512))


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


def test_a_check_takes_the_post_processing_of_the_experiment_but_nothing_of_its_target(
    experiment: Experiment, tmp_path: Path
) -> None:
    (experiment.layout.training_volume("a") / "volumes/labels/mask").mkdir(parents=True)
    bundle = leave_checkpoint(experiment, 40)
    folder = check_folder(experiment, 40)
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(check_text(experiment, REGION, bundle, "p"))
    written = load_experiment(folder)
    target, predict = written.tables["prepare"]["target"], written.tables["predict"]
    assert written.resolve(target["raw"]) == experiment.layout.training_volume("a")
    assert written.resolve(target["mask"]) == written.resolve(target["truth"]) == written.resolve(target["raw"])
    assert target["roi"] == {"offset": "76, 0, 0 vox", "shape": "20, 40, 50 vox"}
    assert predict["roi"] == {"begin": "6, 5, 0 vox", "shape": "8, 30, 50 vox"}
    assert written.resolve(predict["checkpoint"]) == bundle_folder(experiment.layout.checkpoints(STAGE), 40)
    assert predict["outside"] == "zero"
    assert written.tables["watershed"] == {"min_seed_distance_vox": 6}
    assert written.tables["segment"] == {"threshold": "auto", "advice": "truth", "thresholds_step": 0.1}
    assert written.tables["evaluate"] == {"voi_limit": 1.5, "skeletons": "none"}, (
        "zeros count, or nothing costs nothing"
    )
    assert (written.store.engine, written.compute.runner, written.compute.workers) == ("files", "daisy", 3)
    assert "held out: a" in (folder / "experiment.toml").read_text()


def test_an_acrlsd_network_is_checked_behind_the_lsd_network_it_was_trained_with(experiment: Experiment) -> None:
    acrlsd = load_experiment(experiment.path, ["experiment.mode=acrlsd"])
    lsds = {i: leave_checkpoint(acrlsd, i, "train-lsd", kind="lsd", outputs={"lsds": 10}) for i in (3, 4)}
    bundle = leave_checkpoint(acrlsd, 40, kind="acrlsd", lsd_bundle_sha256=lsds[3].weights_sha256)
    text = check_text(acrlsd, REGION, bundle, "p")
    assert "train-lsd/checkpoints/00000003" in text
    assert 'offset = "70, 0, 0 vox"' in text, "the context of both networks"
    with pytest.raises(MissingInput, match="LSD network"):
        check_text(acrlsd, REGION, bundle.model_copy(update={"lsd_bundle_sha256": "gone"}), "p")


def test_every_checkpoint_gets_a_row_and_the_lowest_voi_becomes_the_best(experiment: Experiment) -> None:
    caller = StandIn({10: 2.0, 20: 1.0, 30: 1.5})
    assert checks_of(experiment, caller).update() == 0
    assert caller.calls == [(i, s) for i in (10, 20, 30) for s in STAGES_OF_A_CHECK]
    rows = read_rows(experiment.layout.train_dir(STAGE) / "checks.csv")
    assert [(r.iteration, r.voi, r.threshold) for r in rows] == [(10, 2.0, 0.4), (20, 1.0, 0.4), (30, 1.5, 0.4)]
    assert (rows[0].voi_split, rows[0].voi_merge, rows[0].adapted_rand_error) == (0.5, 1.5, 0.5)
    best = read_best(experiment.layout.best_checkpoint(STAGE))
    assert (best.iteration, best.chosen_by, best.voi, best.validation_loss) == (20, "voi", 1.0, 0.1)
    assert best.weights_sha256 == rows[1].weights_sha256


def test_a_finished_check_leaves_its_report_and_no_arrays_unless_kept(experiment: Experiment) -> None:
    checks_of(experiment, StandIn({10: 2.0, 20: 1.0, 30: 1.5}), keep=False, every=20).update()
    checks_of(experiment, StandIn({10: 2.0, 20: 1.0, 30: 1.5}), keep=True).update()
    folders = {i: check_folder(experiment, i) for i in (10, 20, 30)}
    assert all((folder / "report" / "scores.json").exists() for folder in folders.values())
    assert {i: (folder / "data").exists() for i, folder in folders.items()} == {10: True, 20: False, 30: True}


def test_what_is_checked_is_not_checked_again_but_with_other_settings(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    checks_of(experiment, StandIn(voi)).update()
    checks_of(experiment, again := StandIn(voi)).update()
    assert again.calls == []
    other = load_experiment(experiment.path, ["watershed.min_seed_distance_vox=9"])
    checks_of(other, anew := StandIn({10: 0.5, 20: 3.0, 30: 3.0})).update()
    assert anew.checked == [10, 20, 30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 10
    assert len(read_rows(experiment.layout.train_dir(STAGE) / "checks.csv")) == 6
    checks_of(load_experiment(experiment.path, ["compute.workers=9"]), same := StandIn(voi)).update()
    assert same.calls == []
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_checkpoint_of_the_same_iteration_with_other_weights_is_checked_anew(experiment: Experiment) -> None:
    checks_of(experiment, StandIn({10: 2.0, 20: 1.0, 30: 1.5})).update()
    folder = bundle_folder(experiment.layout.checkpoints(STAGE), 20)
    shutil.rmtree(folder)
    leave_checkpoint(experiment, 20, weights_sha256=hashlib.sha256(b"other").hexdigest())
    (folder / WEIGHTS).write_bytes(b"other")
    checks_of(experiment, caller := StandIn({20: 9.0})).update()
    assert caller.checked == [20]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30


def test_a_check_that_was_cut_resumes_in_its_folder(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    cut = checks_of(experiment, StandIn(voi, codes={"watershed": 75}))
    assert cut.update() == 75
    assert not experiment.layout.best_checkpoint(STAGE).exists()
    half_done = check_folder(experiment, 10) / "data" / "predict"
    assert half_done.exists()
    kept: list[bool] = []
    checks_of(experiment, StandIn(voi, before=lambda i, s: kept.append(half_done.exists()))).update()
    assert kept[0], "what the first run predicted is still there"
    checks_of(load_experiment(experiment.path, ["watershed.min_seed_distance_vox=9"]), StandIn(voi)).update()
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 20


def test_a_half_done_check_of_other_settings_gives_way(experiment: Experiment) -> None:
    voi = {10: 2.0, 20: 1.0, 30: 1.5}
    checks_of(experiment, StandIn(voi, codes={"watershed": 75})).update()
    half_done = check_folder(experiment, 10) / "data" / "predict"
    other = load_experiment(experiment.path, ["watershed.min_seed_distance_vox=9"])
    kept: list[bool] = []
    checks_of(other, StandIn(voi, before=lambda i, s: kept.append(half_done.exists()))).update()
    assert not kept[0]


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
    assert checks_of(experiment, caller).update() == 0
    assert caller.checked == [10, 30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30
    assert "weights are damaged" in caplog.text
    assert "deleted it meanwhile" in caplog.text


def test_every_takes_multiples_and_what_a_finished_training_ended_with(experiment: Experiment) -> None:
    voi = dict.fromkeys((10, 20, 30), 1.0)
    checks_of(experiment, first := StandIn(voi), every=20).update()
    assert first.checked == [20]
    leave_manifest(experiment, STAGE)
    checks_of(experiment, then := StandIn(voi), every=20).update()
    assert then.checked == [30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30, "the newest of equal ones"


def test_follow_waits_for_new_checkpoints_and_ends_with_the_training(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(TABLES)
    experiment = load_experiment(tmp_path)
    leave_manifest(experiment, "prepare")
    caller = StandIn({10: 2.0, 20: 3.0, 30: 1.0})
    seen: list[list[int]] = []

    def train_on(_seconds: float) -> None:
        """What the training elsewhere does at the same time."""
        seen.append(list(caller.checked))
        leave_checkpoint(experiment, 10 * len(seen))
        if len(seen) == 3:
            leave_manifest(experiment, STAGE)

    assert checks_of(experiment, caller).follow(train_on) == 0
    assert seen == [[], [10], [10, 20]]
    assert caller.checked == [10, 20, 30]
    assert read_best(experiment.layout.best_checkpoint(STAGE)).iteration == 30


def test_two_at_once_and_a_training_without_checkpoints_are_refused(experiment: Experiment) -> None:
    checks = checks_of(experiment, StandIn({10: 1.0, 20: 1.0, 30: 1.0}))

    def second(_iteration: int, _stage: str) -> None:
        with pytest.raises(OutputConflict, match="at work"):
            checks.update()

    checks_of(experiment, StandIn({10: 1.0, 20: 1.0, 30: 1.0}, before=second), every=30).update()
    shutil.rmtree(experiment.layout.train_dir(STAGE))
    with pytest.raises(MissingInput, match="no checkpoints"):
        checks.update()
    assert not experiment.layout.train_dir(STAGE).exists()


def test_a_region_without_scored_labels_and_a_damaged_table_are_reported(experiment: Experiment) -> None:
    caller = StandIn({10: 1.0, 20: 1.0, 30: 1.0})
    caller._score = lambda folder, _iteration: (  # type: ignore[method-assign]
        (folder / "report").mkdir(),
        (folder / "report" / "scores.json").write_text(json.dumps({"has_truth": True, "thresholds": []})),
    )
    with pytest.raises(BadData, match="no scores"):
        checks_of(experiment, caller).update()
    (experiment.layout.train_dir(STAGE) / "checks.csv").write_text("iteration,voi\n10,abc\n")
    with pytest.raises(BadData, match="damaged file"):
        checks_of(experiment, caller).update()
