"""train-lsd as users run it: the command, its exit codes, what it leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("gunpowder", reason="the training environment has gunpowder")

from typer.testing import CliRunner

from lsdflow_contract.checkpoint import read_best
from lsdflow_contract.errors import Interrupted
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_kept_manifest, read_manifest
from lsdflow_contract.trainings import shortfall
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


def test_a_training_that_time_ended_says_how_much_it_lacks_and_goes_on_with_more_time(tmp_path, caplog) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml, "--set", "train-lsd.max_minutes=0.00001").exit_code == 0
    facts = read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts
    assert (facts["iteration"], facts["max_iteration"], facts["ended_by"]) == (1, 3, "max_minutes")
    assert facts["loss_begin"] == facts["loss_end"] > 0
    assert (
        "train-lsd trained 33 % of its iterations (1 of 3), ended by max_minutes; the loss did not fall" in caplog.text
    )
    assert call("run", toml).exit_code == 0
    facts = read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts
    assert (facts["iteration"], facts["ended_by"]) == (3, "max_iteration")
    assert "of its iterations" not in shortfall(facts)


def test_status_knows_the_total_before_the_training_ends(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert json.loads(call("status", toml, "--json").stdout)["max_iteration"] == 3


def _bits(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_settings_train_in_a_folder_of_their_own_and_the_first_training_stays_bit_for_bit(
    tmp_path, caplog
) -> None:
    toml, layout = micro_experiment(tmp_path), ExperimentLayout(tmp_path)
    assert call("run", toml).exit_code == 0
    first, manifest = layout.train_dir("train-lsd").resolve(), read_manifest(layout, "train-lsd")
    before = _bits(first)
    other = ("--set", "train-lsd.learning_rate=0.01")
    for verb in ("validate", "run"):
        assert call(verb, toml, *other).exit_code == 0
    assert "learning_rate none -> 0.01" in caplog.text
    second = layout.train_dir("train-lsd").resolve()
    assert {first, second} == set((layout.results / "train-lsd").iterdir())
    assert read_manifest(layout, "train-lsd").key != manifest.key
    assert _bits(first) == before
    assert call("run", toml).exit_code == 0
    assert layout.train_dir("train-lsd").resolve() == first
    again = read_manifest(layout, "train-lsd")
    assert (again.key, again.identity) == (manifest.key, manifest.identity)
    assert {name: bits for name, bits in _bits(first).items() if "checkpoints" in name} == {
        name: bits for name, bits in before.items() if "checkpoints" in name
    }


def test_an_unfinished_training_is_the_current_one_and_the_earlier_one_keeps_its_manifest(
    tmp_path, monkeypatch
) -> None:
    toml, layout = micro_experiment(tmp_path), ExperimentLayout(tmp_path)
    assert call("run", toml).exit_code == 0
    first = read_manifest(layout, "train-lsd")
    other = ("--set", "train-lsd.learning_rate=0.01")

    def interrupted(*arguments: object) -> None:
        raise Interrupted("training stopped by SIGTERM")

    with monkeypatch.context() as stopped:
        stopped.setattr("lsdflow_training.trainer.train", interrupted)
        assert call("run", toml, *other).exit_code == 75
    assert not layout.manifest("train-lsd").exists()
    assert not json.loads(call("status", toml, *other, "--json").stdout)["finished"]
    assert read_kept_manifest(layout, "train-lsd", first.key) == first
    assert call("run", toml).exit_code == 0
    assert read_manifest(layout, "train-lsd").identity == first.identity


def test_where_all_checkpoints_are_damaged_the_refusal_says_which_folder_to_delete(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml).exit_code == 0
    folder = ExperimentLayout(tmp_path).train_dir("train-lsd").resolve()
    for state in folder.glob("checkpoints/*/resume.pt"):
        state.write_bytes(b"damaged")
    refused = call("run", toml, "--set", "train-lsd.max_iteration=4")
    assert refused.exit_code == 65
    assert f"delete {folder}" in refused.output.replace("\n", "")
    shutil.rmtree(folder)
    assert call("run", toml).exit_code == 0
    assert read_manifest(ExperimentLayout(tmp_path), "train-lsd").facts["iteration"] == 3


def test_a_copy_that_followed_the_link_trains_on_in_the_results_and_loses_nothing(tmp_path) -> None:
    toml = micro_experiment(tmp_path / "original")
    assert call("run", toml).exit_code == 0
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    layout = ExperimentLayout(tmp_path / "copy")
    before, identity = _bits(layout.train_dir("train-lsd")), read_manifest(layout, "train-lsd").identity
    assert call("run", layout.experiment_toml).exit_code == 0
    assert layout.train_dir("train-lsd").is_symlink()
    assert _bits(tmp_path / "copy" / "train" / "train-lsd.copy") == before
    assert read_manifest(layout, "train-lsd").identity == identity
    assert call("run", layout.experiment_toml, "--set", "train-lsd.learning_rate=0.01").exit_code == 0


def test_more_iterations_continue(tmp_path) -> None:
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
    refused = json.loads(call("measure", toml, "--into", str(tmp_path / "steps"), "--json").stdout)
    assert (refused["exit_code"], "train-lsd has nothing to do: " in refused["what"]) == (2, True)
    assert not (tmp_path / "train").exists()


def test_without_prepare_it_is_a_missing_input(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    ExperimentLayout(tmp_path).manifest("prepare").unlink()
    assert call("validate", toml).exit_code == 66
    assert call("run", toml).exit_code == 66


@pytest.mark.proves("NET-05")
def test_an_impossible_input_shape_names_the_nearest(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    result = call("run", toml, "--set", "train-lsd.input_shape_vox=[29, 28, 28]")
    assert result.exit_code == 78
    assert "[28, 28, 28]" in result.output
    assert "[30, 28, 28]" in result.output


@pytest.mark.proves("DAT-06")
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


@pytest.mark.proves("NET-01", "TLS-14", "TLS-15", "TLS-16", "TLS-18")
def test_the_standard_profile_is_the_published_training(tmp_path) -> None:
    from lsdflow_training.resolve import resolve_settings

    toml = micro_experiment(tmp_path)
    toml.write_text('[experiment]\nprofile = "standard"\n')
    experiment = load_experiment(toml)
    config = experiment.table("train-lsd", TrainLsdConfig)
    size = (8.0, 8.0, 8.0)
    lsd = resolve_settings(experiment, config, "train-lsd", "lsd", voxel_size_nm=size, lsd=None)
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
    from lsdflow_training.settings import make_bundle

    bundle = make_bundle(lsd, 1, "k", None, None)
    affinities = resolve_settings(experiment, config, "train-acrlsd", "acrlsd", voxel_size_nm=size, lsd=bundle)
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
