"""An experiment that predicts with a network that was trained elsewhere: `init --network`, the demo, the stages."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_contract.checkpoint import read_bundle
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.hashing import hash_of_file
from lsdflow_launch.chain import stages_of
from lsdflow_launch.cli import app
from lsdflow_launch.init.demo import CHECKPOINT, make_demo
from lsdflow_launch.slurm.submit import settings_text

BLOCKS = ("prepare", "predict", "watershed", "agglomerate", "segment", "evaluate")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    make_demo(folder, (60, 70, 80), seed=3, checkpoint=CHECKPOINT)
    return folder


def _stages(folder: Path, *settings: str, **limits: str) -> tuple[str, ...]:
    return stages_of(load_experiment(folder, settings), **limits)


def test_the_supplied_network_is_complete_small_and_as_its_training_wrote_it() -> None:
    bundle = read_bundle(CHECKPOINT)
    assert bundle.kind == "mtlsd"
    assert hash_of_file(CHECKPOINT / "weights.safetensors") == bundle.weights_sha256
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 2_000_000


def test_the_demo_needs_no_training_and_has_a_copy_of_its_network(demo: Path) -> None:
    settings = tomllib.loads((demo / "experiment.toml").read_text())
    assert "training" not in settings["prepare"]
    assert read_bundle(demo / settings["predict"]["checkpoint"]) == read_bundle(CHECKPOINT)
    assert _stages(demo) == BLOCKS


def test_a_demo_that_trains_has_training_volumes_and_no_network(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo", (60, 70, 80), seed=3)
    settings = tomllib.loads((tmp_path / "demo" / "experiment.toml").read_text())
    assert len(settings["prepare"]["training"]) == 1
    assert "checkpoint" not in settings["predict"]
    assert "train-acrlsd" in _stages(tmp_path / "demo")


def test_a_demo_of_another_mode_must_train(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", str(tmp_path / "demo"), "--mode", "acrlsd"])
    assert done.exit_code == 2
    assert f"lsdflow demo {tmp_path / 'demo'} --train --mode acrlsd" in done.output
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    "checkpoint", ['"best"', "200", '"200"', '"train/train-acrlsd/checkpoints/00000200"', '"results/train-acrlsd/k/c"']
)
def test_own_checkpoints_keep_the_training_in_the_chain(demo: Path, checkpoint: str) -> None:
    assert "train-acrlsd" in _stages(demo, f"predict.checkpoint={checkpoint}")


def test_a_training_on_another_disk_is_one_of_this_experiment(demo: Path, tmp_path: Path) -> None:
    own = tmp_path / "experiment"
    shutil.copytree(demo, own)
    (own / "train").mkdir()
    (tmp_path / "large").mkdir()
    (own / "train" / "train-acrlsd").symlink_to(tmp_path / "large")
    assert "train-acrlsd" in _stages(own, "predict.checkpoint=train/train-acrlsd/checkpoints/00000200")


def test_mode_acrlsd_leaves_out_each_training_whose_network_is_given(demo: Path) -> None:
    acrlsd = "experiment.mode=acrlsd"
    assert "train-lsd" in _stages(demo, acrlsd)
    assert "train-acrlsd" not in _stages(demo, acrlsd)
    assert _stages(demo, acrlsd, "predict.lsd_checkpoint=input/network") == BLOCKS


def test_an_affinity_network_that_is_trained_here_needs_the_lsd_network_of_this_experiment(demo: Path) -> None:
    settings = ("experiment.mode=acrlsd", "predict.checkpoint=best", "predict.lsd_checkpoint=input/network")
    assert {"train-lsd", "train-acrlsd"} <= set(_stages(demo, *settings))


def test_a_training_that_is_named_is_run_although_a_network_is_given(demo: Path) -> None:
    assert _stages(demo, last="train-acrlsd") == ("prepare", "train-acrlsd")
    assert _stages(demo, first="train-acrlsd")[0] == "train-acrlsd"


def test_a_training_that_is_named_is_submitted_although_a_network_is_given(demo: Path) -> None:
    named = settings_text(load_experiment(demo), _stages(demo, last="train-acrlsd"))
    assert "STAGES='prepare train-acrlsd'" in named.splitlines()
    assert f"STAGES='{' '.join(BLOCKS)}'" in settings_text(load_experiment(demo)).splitlines()


@pytest.mark.parametrize("missing", ["input/nowhere", "trained"])
def test_validate_reports_a_network_that_is_not_in_the_experiment(demo: Path, missing: str) -> None:
    done = CliRunner().invoke(app, ["validate", str(demo), "--set", f"predict.checkpoint={missing}"])
    assert done.exit_code == 66
    assert f"where: {demo.resolve() / missing}" in done.output


def test_init_with_a_network_takes_its_mode_and_proposes_nothing_for_a_training(demo: Path, tmp_path: Path) -> None:
    volume = demo / "input" / "volume.hdf"
    words = ["init", str(tmp_path / "exp"), "--volume", str(volume), "--network", str(CHECKPOINT)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    settings = tomllib.loads((tmp_path / "exp" / "experiment.toml").read_text())
    assert settings["experiment"]["mode"] == "mtlsd"
    assert "training" not in settings["prepare"]
    assert not {"sigma", "validation_fraction"} & set(settings["train-acrlsd"])
    assert read_bundle(tmp_path / "exp" / settings["predict"]["checkpoint"]) == read_bundle(CHECKPOINT)
    assert settings["prepare"]["target"]["truth"], "labels of the volume are its truth, and are not trained on"
    assert _stages(tmp_path / "exp") == BLOCKS


def test_init_refuses_a_folder_without_a_network_and_one_that_does_not_segment_alone(
    demo: Path, tmp_path: Path
) -> None:
    words = ["init", str(tmp_path / "exp"), "--volume", str(demo / "input" / "volume.hdf"), "--network"]
    assert CliRunner().invoke(app, [*words, str(tmp_path)]).exit_code == 66
    lsds = tmp_path / "lsds"
    shutil.copytree(CHECKPOINT, lsds)
    description = (lsds / "bundle.json").read_text().replace('"mtlsd"', '"lsd"')
    (lsds / "bundle.json").write_text(description)
    (lsds / "bundle.sha256").unlink()
    done = CliRunner().invoke(app, [*words, str(lsds)])
    assert done.exit_code == 2
    assert "this network does not segment alone" in done.output
    assert not (tmp_path / "exp").exists()
