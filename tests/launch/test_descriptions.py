"""Plans and checks of a chain that has not run: real stages, real metadata, no voxel read or written."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.experiment import BLOCK_STAGES, STAGES, load_experiment
from lsdflow_launch import preflight
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.descriptions import descriptions_of, finished_stages
from lsdflow_launch.init.demo import make_demo


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small experiment, of which nothing has run."""
    folder = tmp_path_factory.mktemp("fresh") / "demo"
    make_demo(folder, (60, 70, 80), seed=3, mode="acrlsd")
    return folder


def lsdflow(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(os.environ.get("LSDFLOW_BIN", "bin")) / "lsdflow"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def plan(folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    done = lsdflow("plan", str(folder), "--json", *words)
    assert done.returncode in codes, done.stdout + done.stderr
    planned: dict[str, Any] = json.loads(done.stdout)
    return planned


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != "plan.json"}


@pytest.mark.proves("NEW-02")
def test_every_stage_of_a_fresh_experiment_is_planned_and_nothing_is_left_behind(fresh: Path) -> None:
    before = files_of(fresh)
    answer = plan(fresh)
    assert files_of(fresh) == before
    target = answer["prepare"]["target"]["shape_vox"]
    for stage in BLOCK_STAGES:
        assert answer[stage]["voxels"] == math.prod(target), stage
        assert answer[stage]["blocks"] >= 1
        for number in ("bytes_written", "files", "seconds", "rss_per_worker_bytes"):
            assert answer[stage]["estimate"][number]["value"] is not None, (stage, number)
    assert answer["predict"]["bytes_out_uncompressed"] >= 3 * math.prod(target)
    assert answer["train-acrlsd"]["voxel_size_nm"] == [10, 10, 10]


@pytest.mark.proves("NEW-02")
def test_a_plan_for_a_volume_of_another_shape_needs_no_such_volume(fresh: Path) -> None:
    kept = plan(fresh) and (fresh / "plan.json").read_bytes()
    shape = (4000, 5000, 6000)
    # 74: such a volume does not fit on the disk of most machines
    answer = plan(fresh, "--volume-shape", "4000,5000,6000", "--workers", "20", codes=(0, 74))
    assert [answer[stage]["voxels"] for stage in BLOCK_STAGES] == [math.prod(shape)] * len(BLOCK_STAGES)
    blocks = [-(-n // b) for n, b in zip(shape, answer["watershed"]["block_shape_vox"], strict=True)]
    assert answer["watershed"]["blocks"] == math.prod(blocks)
    estimate = answer["predict"]["estimate"]
    assert estimate["walltime_s"]["value"] == pytest.approx(estimate["seconds"]["value"] / 20, rel=0.05)
    assert (fresh / "plan.json").read_bytes() == kept, "it is no plan of this experiment"


@pytest.mark.parametrize("text", ["100,100", "a,b,c", "0,1,1"])
def test_what_is_no_shape_is_refused(fresh: Path, text: str) -> None:
    done = lsdflow("plan", str(fresh), "--volume-shape", text)
    assert (done.returncode, "not a shape" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("setting", "stage", "said"),
    [
        ("predict.tile_shape=1 nm", "predict", "predict.tile_shape"),
        ('predict.roi={begin = "0 vox", shape = "9999 vox"}', "predict", "leaves the data"),
        ("watershed.block_shape=105 nm", "watershed", "watershed.block_shape"),
        ("agglomerate.super_block=7 vox", "agglomerate", "super-block"),
        ('segment.roi={begin = "0 vox", shape = "9999 vox"}', "segment", "leaves the data"),
        ("train-lsd.input_shape_vox=[83, 83, 83]", "train-lsd", "input shape"),
    ],
)
def test_validate_finds_what_only_the_stages_before_could_find(
    fresh: Path, setting: str, stage: str, said: str
) -> None:
    done = lsdflow("validate", str(fresh), "--json", "--set", setting)
    found = json.loads(done.stdout)
    assert done.returncode == 78, found
    assert [s for s in STAGES if found.get(s)] == [stage]
    assert said in json.dumps(found[stage])
    assert "lsdflow-descriptions" not in done.stdout


@pytest.mark.parametrize("setting", ["input_shape_vox=[83, 83, 83]", "input_shape_vox=none", "no_such_key=1"])
def test_a_wrong_setting_does_not_hide_those_of_later_stages(fresh: Path, setting: str) -> None:
    wrong = (f"train-lsd.{setting}", "agglomerate.super_block=7 vox")
    found = json.loads(lsdflow("validate", str(fresh), "--json", *(w for s in wrong for w in ("--set", s))).stdout)
    assert [stage for stage in STAGES if found.get(stage)] == ["train-lsd", "agglomerate"]


@pytest.mark.parametrize(
    ("settings", "bytes_"),
    [
        (("predict.store_lsds=false",), 3 * 26 * 70 * 80),
        (("predict.store_lsds=true",), 13 * 26 * 70 * 80),
        (("predict.store_lsds=false", 'predict.roi={begin = "0 vox", shape = "8 vox"}'), 3 * 8**3),
    ],
)
def test_the_disk_space_that_predict_will_need_follows_its_settings(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], bytes_: int
) -> None:
    needed: list[dict[str, float]] = []
    monkeypatch.setattr(
        preflight, "experiment_problems", lambda _experiment, to_come, _images: needed.append(to_come) or []
    )
    preflight.problems_of(load_experiment(fresh, settings))
    (found,) = needed
    assert (found["predict"], found["evaluate"]) == (bytes_, 0)


def test_what_was_begun_does_not_need_its_disk_space_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[dict[str, float]] = []
    monkeypatch.setattr(
        preflight, "experiment_problems", lambda _experiment, to_come, _images: needed.append(to_come) or []
    )
    experiment = load_experiment(fresh)
    (experiment.layout.results / "watershed").mkdir(parents=True)
    try:
        preflight.problems_of(experiment)
    finally:
        shutil.rmtree(experiment.layout.results)
    assert "watershed" not in needed[0]
    assert needed[0]["segment"] > 0


def test_descriptions_next_to_finished_results_leave_them_as_they_are(fresh: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    make_demo(folder, (60, 70, 80), seed=3, mode="acrlsd")
    experiment = load_experiment(folder)
    ask_stage("prepare", ["run", "--experiment", str(folder), "--json"])
    assert finished_stages(experiment) == ["prepare"]
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}
    answer = plan(folder)
    assert answer["segment"]["blocks"] >= 1
    assert {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")} == before


def test_descriptions_are_in_the_experiment_only_for_containers(fresh: Path) -> None:
    experiment = load_experiment(fresh)
    changed = fresh.stat().st_mtime_ns
    with descriptions_of(experiment, [], ask_stage) as layout:
        assert layout.root.is_dir()
        assert not layout.root.is_relative_to(fresh)
    assert not layout.root.exists()
    assert fresh.stat().st_mtime_ns == changed
    with descriptions_of(experiment, [], lambda _stage, _arguments: {}) as layout:
        assert layout.root.parent == fresh
    assert not layout.root.exists()
