"""validate of a training refuses settings that cannot work while nothing is prepared, each with its field."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.geometry import Nm3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_train_acrlsd.cli import app as train_acrlsd
from lsdflow_train_lsd.cli import app as train_lsd
from lsdflow_training.testing import micro_experiment, micro_volume


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose volumes are not prepared."""
    toml = micro_experiment(tmp_path_factory.mktemp("fresh"))
    ExperimentLayout(toml.parent).manifest("prepare").unlink()
    return toml


@pytest.fixture
def descriptions(tmp_path: Path) -> Path:
    """What prepare describes: a volume."""
    return micro_experiment(tmp_path / "descriptions").parent


def problems(app, toml: Path, *settings: str, descriptions: Path | None = None) -> list[dict]:
    words = ["validate", "--experiment", str(toml), "--json"]
    words += [word for setting in settings for word in ("--set", setting)]
    words += ["--descriptions", str(descriptions)] if descriptions else []
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    return answer if isinstance(answer, list) else [answer]


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("sigma=0 nm", "train-lsd.sigma"),
        ("learning_rate=1000", "train-lsd.learning_rate"),
        ("downsample_factors=[[2,0,2]]", "train-lsd.downsample_factors"),
        ("input_shape_vox=[197,197,197]", "train-lsd.input_shape_vox"),
        ("predict_input_shape_vox=[31,32,32]", "train-lsd.predict_input_shape_vox"),
        ("backend=tensorflow", "train-lsd.backend"),
        ("mlflow=local", "train-lsd.mlflow"),
        ("lsd_engine=lsds", "train-lsd.lsd_engine"),
        ("precision=fp16", "train-lsd.precision"),
        ("num_fmaps=1024", "train-lsd.num_fmaps"),
        ("lsd_downsample=4", ""),
        ("max_misalign_vox=14", "train-lsd.max_misalign_vox"),
        ("threads=1000000000", "train-lsd.threads"),
        ("processes=1000000000", "train-lsd.processes"),
        ("fmap_inc_factor=1000000000", "train-lsd.fmap_inc_factor"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_prepare(
    fresh: Path, setting: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    more = ["train-lsd.fmap_inc_factor=32", "train-lsd.downsample_factors=[[2,2,2]]"] if "fmaps" in setting else []
    found = problems(train_lsd, fresh, f"train-lsd.{setting}", *more)
    wrong = [p for p in found if p["exit_code"] == 78]
    assert len(wrong) == (1 if field else 0), found
    assert not field or field in wrong[0]["where"] + wrong[0]["what"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sigma=400 nm", "half the input of the network"),
        ("sigma=1 nm", "from half a voxel"),
        ("input_shape_vox=[84,84,84]", "too small for the network's output"),
        ("volumes=['b']", "no training volume 'b'"),
    ],
)
def test_settings_are_checked_against_volumes_that_are_not_prepared(
    fresh: Path, descriptions: Path, setting: str, said: str
) -> None:
    found = problems(train_lsd, fresh, f"train-lsd.{setting}", descriptions=descriptions)
    assert said in json.dumps(found)
    assert len(found) == 1


def test_volumes_of_two_voxel_sizes_are_refused_before_they_are_prepared(fresh: Path, descriptions: Path) -> None:
    _describe_another(descriptions, (16.0, 8.0, 8.0))
    (found,) = problems(train_lsd, fresh, descriptions=descriptions)
    assert "different voxel" in json.dumps(found)


def test_both_networks_of_acrlsd_are_checked_together_before_the_first_is_trained(
    fresh: Path, descriptions: Path
) -> None:
    assert [p["exit_code"] for p in problems(train_acrlsd, fresh, descriptions=descriptions)] == [66], "no LSD network"
    assert problems(train_lsd, fresh, descriptions=descriptions) == []
    assert (descriptions / "train" / "train-lsd" / "best.json").exists()
    (wrong,) = problems(train_acrlsd, fresh, "train-acrlsd.sigma=32 nm", descriptions=descriptions)
    assert (wrong["exit_code"], "the same sigma" in json.dumps(wrong)) == (76, True)
    assert "train-lsd and train-acrlsd, sigma or volumes" in wrong["where"]


def test_networks_of_two_voxel_sizes_are_refused_before_the_first_is_trained(fresh: Path, descriptions: Path) -> None:
    _describe_another(descriptions, (16.0, 16.0, 16.0))
    assert problems(train_lsd, fresh, "train-lsd.volumes=['micro']", descriptions=descriptions) == []
    (wrong,) = problems(train_acrlsd, fresh, "train-acrlsd.volumes=['b']", descriptions=descriptions)
    assert wrong["exit_code"] == 76


def _describe_another(descriptions: Path, voxel_size_nm: Nm3) -> None:
    layout = ExperimentLayout(descriptions)
    micro_volume(layout.training_volume("b"), voxel_size_nm=voxel_size_nm)
    manifest = read_manifest(layout, "prepare")
    manifest.facts["volumes"]["training/b"] = {"probability": 1.0}
    manifest.write(layout)


@pytest.mark.parametrize(
    ("settings", "codes"), [([], [78]), (["cluster.predict={}"], [78]), (["cluster.partition_gpu=gpu"], [])]
)
def test_jobs_of_a_cluster_may_have_the_gpu_that_this_machine_has_not(
    fresh: Path, descriptions: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], codes: list[int]
) -> None:
    monkeypatch.setattr("lsdflow_training.checks.gpu_count", lambda **_: 0)
    monkeypatch.setattr("lsdflow_training.resolve.gpu_count", lambda **_: 0)
    wanted = ["train-lsd.precision=fp16", "compute.device=auto"]
    found = problems(train_lsd, fresh, *wanted, *settings, descriptions=descriptions)
    assert [p["exit_code"] for p in found] == codes


@pytest.mark.parametrize(("corner_vox", "refused"), [(24, False), (8, True)])
def test_a_mask_that_leaves_no_place_for_a_patch_is_refused_before_the_training(
    tmp_path: Path, corner_vox: int, refused: bool
) -> None:
    toml = micro_experiment(tmp_path / "experiment")
    layout = ExperimentLayout(toml.parent)
    prepared = read_manifest(layout, "prepare")
    (name,) = (label for label in prepared.facts["volumes"] if label.startswith("training/"))
    container = layout.training_volume(name.removeprefix("training/"))
    states = np.zeros((40, 40, 40), np.uint8)
    states[:corner_vox, :corner_vox, :corner_vox] = 1
    micro_volume(container, mask=states)
    prepared.facts["volumes"][name]["trained_fraction"] = float(states.mean())
    prepared.write(layout)
    found = problems(train_lsd, toml)
    assert [(error["what"], error["exit_code"]) for error in found] == (
        [("the mask leaves too few voxels for any patch of the training", 65)] if refused else []
    )
    for error in found:
        assert error["where"] == str(container)
        assert f"{states.mean():.1%}" in error["found"]
