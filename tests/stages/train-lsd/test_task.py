"""train-lsd as users run it: the command, its exit codes, what it leaves."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("gunpowder", reason="the training environment has gunpowder")

from typer.testing import CliRunner

from lsdflow_contract.checkpoint import bundle_folder, read_best
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_train_lsd.cli import app
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.testing import micro_experiment


def call(verb: str, toml, *more: str):
    return CliRunner().invoke(app, [verb, "--experiment", str(toml), *more])


def test_run_leaves_bundle_best_and_manifest(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("validate", toml).exit_code == 0
    result = call("run", toml)
    assert result.exit_code == 0, result.output
    layout = ExperimentLayout(tmp_path)
    manifest = read_manifest(layout, "train-lsd")
    assert (manifest.facts["iteration"], manifest.facts["ended_by"]) == (3, "max_iteration")
    assert read_best(layout.best_checkpoint("train-lsd")).iteration == manifest.facts["best_iteration"]
    status = json.loads(call("status", toml, "--json").stdout)
    assert status["finished"]
    assert status["iterations"] == [2, 3]


def test_other_settings_after_training_are_refused_unless_replaced(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml).exit_code == 0
    other = ("--set", "train-lsd.learning_rate=0.01")
    for verb in ("run", "validate"):
        refused = call(verb, toml, *other)
        assert refused.exit_code == 73, refused.output
        assert "learning_rate none -> 0.01" in refused.output
    assert call("validate", toml, *other, "--replace").exit_code == 0
    assert call("validate", toml, "--set", "train-lsd.max_iteration=4").exit_code == 0, "that is the same training"
    assert call("run", toml, *other, "--replace").exit_code == 0


@pytest.mark.parametrize("job", ["", "7 restart 0", "7 restart 1"])
def test_replace_keeps_a_training_of_the_same_settings_and_says_so(tmp_path, monkeypatch, caplog, job) -> None:
    toml = micro_experiment(tmp_path)
    folder = tmp_path / "train" / "train-lsd"
    first = bundle_folder(folder / "checkpoints", 2)
    assert call("run", toml, "--set", "train-lsd.max_iteration=2").exit_code == 0
    (first / "of the first start").touch()
    monkeypatch.setenv("LSDFLOW_JOB", job)
    with caplog.at_level("INFO", logger="lsdflow.training"):
        assert call("run", toml, "--replace").exit_code == 0
    assert (first / "of the first start").exists()
    assert "iteration 2 was trained with the same settings and inputs; it is kept" in caplog.text
    assert f"delete {folder} first" in caplog.text
    assert read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts["iteration"] == 3


def test_replace_trains_anew_where_all_checkpoints_are_damaged_as_the_refusal_says(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml).exit_code == 0
    checkpoints = tmp_path / "train" / "train-lsd" / "checkpoints"
    for state in checkpoints.glob("*/resume.pt"):
        state.write_bytes(b"damaged")
    refused = call("run", toml)
    assert refused.exit_code == 65
    assert call("run", toml, "--replace").exit_code == 0
    assert not any(state.read_bytes() == b"damaged" for state in checkpoints.glob("*/resume.pt"))
    assert read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts["iteration"] == 3


def test_a_requeued_job_replaces_the_training_of_others_that_its_first_start_did_not_reach(
    tmp_path, monkeypatch
) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml).exit_code == 0
    monkeypatch.setenv("LSDFLOW_JOB", "7 restart 1")
    other = ("--set", "train-lsd.learning_rate=0.01")
    assert call("run", toml, *other).exit_code == 73
    assert call("run", toml, *other, "--replace").exit_code == 0


def test_more_iterations_go_on(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml).exit_code == 0
    assert call("run", toml, "--set", "train-lsd.max_iteration=5").exit_code == 0
    assert read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts["iteration"] == 5


@pytest.mark.parametrize("mode", ["mtlsd", "affinities"])
def test_modes_without_an_lsd_network_say_so(tmp_path, mode, caplog) -> None:
    toml = micro_experiment(tmp_path, mode)
    with caplog.at_level("INFO"):
        assert call("run", toml).exit_code == 0
    assert "nothing to do" in caplog.text
    assert "nothing_to_do" in json.loads(call("plan", toml, "--json").stdout)
    assert not (tmp_path / "train").exists()


def test_without_prepare_it_is_a_missing_input(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    ExperimentLayout(tmp_path).manifest("prepare").unlink()
    assert call("validate", toml).exit_code == 66
    assert call("run", toml).exit_code == 66


def test_an_impossible_input_shape_names_the_nearest(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    result = call("run", toml, "--set", "train-lsd.input_shape_vox=[29, 28, 28]")
    assert result.exit_code == 78
    assert "[28, 28, 28]" in result.output
    assert "[30, 28, 28]" in result.output


def test_a_volume_smaller_than_a_patch_is_refused(tmp_path) -> None:
    toml = micro_experiment(tmp_path, options={"input_shape_vox": [96, 96, 96]})
    result = call("validate", toml)
    assert result.exit_code == 65
    assert "too small" in result.output


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("train-lsd.max_iterations=5", "max_iteration"),
        ("train-lsd.probabilities=[0.5, 0.4]", "sum to 1"),
        ("train-lsd.volumes=['micr']", "micro"),
        ("train-lsd.probabilities=[0.5, 0.5]", "one probability per volume"),
    ],
)
def test_wrong_options_are_refused_with_advice(tmp_path, override, word) -> None:
    result = call("run", micro_experiment(tmp_path), "--set", override)
    assert result.exit_code == 78
    assert word in result.output


def test_the_standard_profile_is_the_published_training(tmp_path) -> None:
    from lsdflow_training.resolve import resolve_recipe

    toml = micro_experiment(tmp_path)
    toml.write_text('[experiment]\nprofile = "standard"\n')
    experiment = load_experiment(toml)
    config = experiment.table("train-lsd", TrainLsdConfig)
    size = (8.0, 8.0, 8.0)
    lsd = resolve_recipe(experiment, config, "train-lsd", "lsd", voxel_size_nm=size, lsd=None)
    assert (lsd.unet.num_fmaps, lsd.unet.fmap_inc_factor) == (12, 6)
    assert lsd.unet.downsample_factors == ((2, 2, 2), (2, 2, 2), (3, 3, 3))
    assert (lsd.shapes.raw_vox, lsd.shapes.output_vox) == ((196,) * 3, (92,) * 3)
    assert lsd.targets.sigma_nm == (80, 80, 80)
    how = lsd.schedules
    assert (how.max_iteration, how.learning_rate, how.betas, how.schedule) == (
        300_000,
        0.5e-4,
        (0.95, 0.999),
        "constant",
    )
    assert (how.checkpoint_every, how.snapshot_every) == (10_000, 1_000)
    assert (lsd.min_masked, lsd.cache_size, lsd.targets.lsd_downsample, lsd.targets.grow_boundary_vox) == (
        0.5,
        40,
        2,
        1,
    )
    from lsdflow_training.bundle_facts import make_bundle

    bundle = make_bundle(lsd, 1, "k", None, None)
    affinities = resolve_recipe(experiment, config, "train-acrlsd", "acrlsd", voxel_size_nm=size, lsd=bundle)
    assert affinities.shapes.raw_vox == (304,) * 3
    assert affinities.shapes.network_input_vox == (196,) * 3
    assert affinities.shapes.output_vox == (92,) * 3
    assert affinities.unet.in_channels == 11
    assert affinities.schedules.max_iteration == 400_000


def test_the_published_package_can_compute_the_targets_and_leads_to_the_same_loss(tmp_path) -> None:
    losses = []
    for engine in ("lsdflow", "lsds"):
        toml = micro_experiment(tmp_path / engine)
        result = call("run", toml, "--set", f"train-lsd.lsd_engine={engine}")
        assert result.exit_code == 0, result.output
        lines = (tmp_path / engine / "train" / "train-lsd" / "loss.csv").read_text().splitlines()
        losses.append([float(line.split(",")[1]) for line in lines[1:]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
