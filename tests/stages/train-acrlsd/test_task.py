"""train-acrlsd as users run it, in its three modes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("gunpowder", reason="the training environment has gunpowder")

from typer.testing import CliRunner

from lsdflow_contract.checkpoint import bundle_folder, read_best, read_bundle
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_train_acrlsd.cli import app
from lsdflow_train_lsd.cli import app as lsd_app
from lsdflow_training.testing import micro_experiment


def call(verb: str, toml, *more: str, command=app):
    return CliRunner().invoke(command, [verb, "--experiment", str(toml), *more])


def best_bundle(root):
    layout = ExperimentLayout(root)
    best = read_best(layout.best_checkpoint("train-acrlsd"))
    return read_bundle(bundle_folder(layout.checkpoints("train-acrlsd"), best.iteration))


@pytest.mark.parametrize(("mode", "outputs"), [("mtlsd", {"lsds": 10, "affs": 3}), ("affinities", {"affs": 3})])
def test_one_network_modes_need_no_lsd_bundle(tmp_path, mode, outputs) -> None:
    toml = micro_experiment(tmp_path, mode)
    assert call("validate", toml).exit_code == 0
    result = call("run", toml)
    assert result.exit_code == 0, result.output
    bundle = best_bundle(tmp_path)
    assert (bundle.kind, bundle.outputs, bundle.unet.in_channels) == (mode, outputs, 1)
    assert bundle.neighborhood == ((-1, 0, 0), (0, -1, 0), (0, 0, -1))
    assert (bundle.sigma_nm is None) == (mode == "affinities")


def test_with_a_given_network_and_no_training_volumes_there_is_nothing_to_do(tmp_path, caplog) -> None:
    toml = tmp_path / "experiment.toml"
    for mode, lsds in (("mtlsd", ""), ("acrlsd", 'lsd_checkpoint = "lsds"\n')):
        toml.write_text(f'[experiment]\nname = "e"\nmode = "{mode}"\n[predict]\ncheckpoint = "network"\n{lsds}')
        for command in (lsd_app, app):
            caplog.clear()
            with caplog.at_level("INFO"):
                assert call("run", toml, command=command).exit_code == 0, "compose runs every stage"
            assert "nothing to do" in caplog.text
    toml.write_text('[experiment]\nname = "e"\nmode = "mtlsd"\n')
    assert call("run", toml).exit_code == 66
    assert not (tmp_path / "train").exists()


def test_further_affinities_are_learnt_recorded_and_another_training(tmp_path) -> None:
    toml = micro_experiment(tmp_path, "mtlsd")
    assert call("run", toml).exit_code == 0
    nearest = [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert read_manifest(ExperimentLayout(tmp_path), "train-acrlsd").config["neighborhood"] == nearest
    far = "[[-1, 0, 0], [0, -1, 0], [0, 0, -1], [-3, 0, 0], [0, 0, -5]]"
    first = read_manifest(ExperimentLayout(tmp_path), "train-acrlsd").key
    result = call("run", toml, "--set", f"train-acrlsd.neighborhood={far}")
    assert result.exit_code == 0, result.output
    assert read_manifest(ExperimentLayout(tmp_path), "train-acrlsd").key != first
    bundle = best_bundle(tmp_path)
    assert bundle.outputs == {"lsds": 10, "affs": 5}
    assert [list(offset) for offset in bundle.neighborhood] == json.loads(far)
    assert read_manifest(ExperimentLayout(tmp_path), "train-acrlsd").config["neighborhood"] == json.loads(far)
    refused = call("validate", toml, "--set", "train-acrlsd.neighborhood=[[0, 0, -1]]")
    assert refused.exit_code == 78
    assert "neighborhood begins with [-1, 0, 0]" in refused.output.replace("\n", " ")


def test_acrlsd_names_the_lsd_bundle_it_was_trained_with(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml, command=lsd_app).exit_code == 0
    assert call("validate", toml).exit_code == 0
    result = call("run", toml)
    assert result.exit_code == 0, result.output
    bundle = best_bundle(tmp_path)
    lsd = read_best(ExperimentLayout(tmp_path).best_checkpoint("train-lsd"))
    assert bundle.lsd_bundle_sha256 == lsd.weights_sha256
    assert bundle.unet.in_channels == 11
    assert read_manifest(ExperimentLayout(tmp_path), "train-acrlsd").inputs["lsd_weights"] == lsd.weights_sha256


@pytest.mark.proves("NET-09")
def test_acrlsd_without_an_lsd_bundle_is_a_missing_input(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("validate", toml).exit_code == 66
    assert call("run", toml).exit_code == 66
    assert not (tmp_path / "train").exists()


@pytest.mark.proves("TAC-06")
def test_another_sigma_than_the_lsd_networks_is_refused_before_training(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml, command=lsd_app).exit_code == 0
    result = call("run", toml, "--set", "train-acrlsd.sigma=40 nm")
    assert result.exit_code == 76
    assert "sigma" in result.output
    assert call("validate", toml, "--set", "train-acrlsd.sigma=40 nm").exit_code == 76
    assert not (tmp_path / "train" / "train-acrlsd").exists()


def test_without_a_sigma_of_its_own_it_takes_the_lsd_networks(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml, command=lsd_app).exit_code == 0
    text = toml.read_text()
    head, tail = text.split("[train-acrlsd]")
    toml.write_text(head + "[train-acrlsd]" + tail.replace('sigma = "24 nm"\n', ""))
    assert call("run", toml).exit_code == 0
    assert best_bundle(tmp_path).sigma_nm == (24, 24, 24)


def test_a_new_lsd_network_makes_the_old_affinity_training_another_one(tmp_path) -> None:
    toml = micro_experiment(tmp_path)
    assert call("run", toml, command=lsd_app).exit_code == 0
    assert call("run", toml).exit_code == 0
    layout = ExperimentLayout(tmp_path)
    first = layout.train_dir("train-acrlsd").resolve()
    assert call("run", toml, "--set", "train-lsd.learning_rate=0.01", command=lsd_app).exit_code == 0
    assert call("run", toml).exit_code == 0
    assert layout.train_dir("train-acrlsd").resolve() != first
    assert first.is_dir()


def in_its_own_process(verb: str, toml) -> tuple[set[str], str]:
    """The command -> (the heavy libraries it has imported, its log)."""
    code = (
        f"import sys; from lsdflow_train_acrlsd.cli import app; app({[verb, '--experiment', str(toml)]}, "
        "standalone_mode=False); print(*{'torch', 'gunpowder', 'numba', 'numpy', 'rich'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split()), done.stderr


def test_a_finished_training_says_so_without_torch_and_changes_nothing(tmp_path) -> None:
    toml, layout = micro_experiment(tmp_path, "mtlsd"), ExperimentLayout(tmp_path)
    assert call("run", toml).exit_code == 0
    manifest = layout.manifest("train-acrlsd").read_bytes()
    imported, log = in_its_own_process("run", toml)
    assert imported == set()
    assert "nothing to do, it has finished at iteration 3 (max_iteration)" in log
    assert layout.manifest("train-acrlsd").read_bytes() == manifest


def test_a_finished_training_is_resumed_for_more_iterations_and_repaired_if_damaged(tmp_path, caplog) -> None:
    toml, layout = micro_experiment(tmp_path, "mtlsd"), ExperimentLayout(tmp_path)
    assert call("run", toml).exit_code == 0
    weights = bundle_folder(layout.checkpoints("train-acrlsd"), 3) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with caplog.at_level("INFO"):
        assert call("run", toml).exit_code == 0
    assert "resuming from iteration 2" in caplog.text
    assert call("run", toml, "--set", "train-acrlsd.max_iteration=4").exit_code == 0
    assert read_manifest(layout, "train-acrlsd").facts["iteration"] == 4
