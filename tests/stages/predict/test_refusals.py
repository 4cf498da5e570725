"""What predict refuses, with which exit code, and that nothing is written then."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lsdflow_contract.checkpoint import WEIGHTS, bundle_folder
from lsdflow_contract.errors import (
    BadData,
    ConfigError,
    ContractMismatch,
    MissingInput,
    StageError,
)
from lsdflow_contract.geometry import Box
from lsdflow_network.bundle import load_bundle
from lsdflow_predict.cli import app
from lsdflow_predict.evaluation import grey_levels
from lsdflow_predict.stage import Predict


def _refused(experiment, kind: type[StageError], *overrides: str) -> StageError:
    """The error of a run, which must also be among the problems of validate, and must come before any output."""
    with pytest.raises(kind) as caught:
        experiment.run(*overrides)
    assert not (experiment.layout.results / "predict").exists()
    problems = Predict().validate(experiment.experiment(*overrides))
    assert caught.value.what in [p.what for p in problems]
    return caught.value


def test_nothing_is_wrong_with_the_tiny_experiment(make_experiment):
    assert Predict().validate(make_experiment().experiment()) == []


@pytest.mark.parametrize("verb", ["validate", "plan", "status"])
def test_checking_and_planning_do_not_load_torch(make_experiment, verb):
    """Loading takes seconds; only the driver of a GPU makes it necessary."""
    code = (
        "import sys; from pathlib import Path;"
        "from lsdflow_network import devices; from lsdflow_predict.cli import app;"
        "devices.gpu_count.__defaults__ = (Path('/nowhere'),);"
        "app([sys.argv[1], '--experiment', sys.argv[2]], standalone_mode=False); print('torch' in sys.modules)"
    )
    experiment = make_experiment().experiment()
    command = [sys.executable, "-c", code, verb, experiment.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_bf16_is_refused_by_validate_and_by_run_where_the_cpu_cannot_compute_in_it(make_experiment):
    """A CPU with AVX2 only, as every AMD before Zen 4."""
    experiment = make_experiment()
    settings = ["--experiment", str(experiment.root), "--set", "predict.precision=bf16", "--set", "compute.device=cpu"]
    code = "import sys; from lsdflow_predict.cli import app; app(sys.argv[1:])"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    for verb in ("validate", "run"):
        command = [sys.executable, "-c", code, verb, *settings]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == ConfigError.exit_code, output
        assert "this CPU cannot compute in bf16" in output
        assert "predict.precision" in output
    assert not (experiment.layout.results / "predict").exists()


def test_a_gpu_that_does_not_exist_is_reported_once(make_experiment, monkeypatch):
    """The check of main memory once reported it again; a cluster has GPUs that this machine has not."""
    monkeypatch.setattr("lsdflow_predict.resources.gpu_count", lambda: 0)
    experiment = make_experiment().experiment("compute.device=cuda:1")
    assert [problem.what for problem in Predict().validate(experiment)] == ["there is no such GPU"]


def test_another_lsd_network_than_trained_with(make_experiment, micro_bundle):
    experiment = make_experiment()
    other = micro_bundle(experiment.layout, "lsd", 4)
    error = _refused(experiment, ContractMismatch, "predict.lsd_checkpoint=4")
    assert other.weights_sha256 in error.found
    assert error.exit_code == 76
    manifest = experiment.run("predict.lsd_checkpoint=4", "predict.allow_lsd_mismatch=true")
    assert other.weights_sha256 in manifest.config["resolved"]["accepted"][0]


def test_the_lsd_network_trained_with_is_found_among_newer_ones(make_experiment, micro_bundle):
    experiment = make_experiment()
    reference = experiment.affinities()
    micro_bundle(experiment.layout, "lsd", 4)
    assert np.array_equal(experiment.affinities(), reference)


@pytest.mark.proves("NET-09")
def test_the_lsd_network_trained_with_is_missing(make_experiment, micro_bundle):
    experiment = make_experiment()
    micro_bundle(experiment.layout, "acrlsd", 8, lsd_sha256="0" * 64)
    error = _refused(experiment, ContractMismatch)
    assert "0" * 64 in error.wanted


@pytest.mark.proves("TRB-19")
def test_a_network_of_another_kind(make_experiment):
    experiment = make_experiment()
    lsd = bundle_folder(experiment.layout.checkpoints("train-lsd"), 3)
    error = _refused(experiment, ContractMismatch, f'predict.checkpoint="{lsd}"')
    assert error.found.startswith("lsd from train-lsd")


def test_another_voxel_size_than_trained_at(make_experiment, micro_bundle):
    experiment = make_experiment("affinities")
    micro_bundle(experiment.layout, "affinities", 7, voxel_size_nm=(8.0, 8.0, 8.0))
    error = _refused(experiment, ContractMismatch)
    assert "(8.0, 8.0, 8.0)" in error.wanted
    assert "(10.0, 8.0, 8.0)" in error.found
    manifest = experiment.run("predict.allow_voxel_size_mismatch=true")
    assert "8.0" in manifest.config["resolved"]["accepted"][0]


def test_damaged_weights(make_experiment):
    experiment = make_experiment()
    path = bundle_folder(experiment.layout.checkpoints("train-acrlsd"), 7) / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert _refused(experiment, BadData).exit_code == 65


@pytest.mark.proves("TRB-18")
def test_an_iteration_that_does_not_exist(make_experiment):
    error = _refused(make_experiment(), MissingInput, "predict.checkpoint=99")
    assert error.found == "iterations: 7"


def test_an_iteration_can_be_chosen(make_experiment, micro_bundle):
    experiment = make_experiment("affinities")
    reference = experiment.affinities()
    micro_bundle(experiment.layout, "affinities", 8)
    assert np.array_equal(experiment.affinities("predict.checkpoint=7"), reference)
    assert experiment.run().config["resolved"]["iteration"] == 8


def test_no_prepared_target(make_experiment):
    experiment = make_experiment()
    experiment.layout.manifest("prepare").unlink()
    _refused(experiment, MissingInput)


def test_a_region_that_leaves_the_target(make_experiment):
    error = _refused(make_experiment(), ConfigError, 'predict.roi={begin="4 vox", shape="19 vox"}')
    assert "z[4:19] y[4:22] x[4:23]" in error.found


def test_a_region_of_half_voxels(make_experiment):
    _refused(make_experiment(), ConfigError, 'predict.roi={begin="4 nm", shape="8 vox"}')


def test_a_mask_that_is_not_there(make_experiment):
    _refused(make_experiment(), MissingInput, 'predict.mask="volumes/masc"')


def test_lsds_to_store_in_a_mode_without_lsds(make_experiment):
    _refused(make_experiment("affinities"), ConfigError, "predict.store_lsds=true")


def test_all_problems_are_listed_at_once(make_experiment):
    settings = ('predict.mask="none"', "predict.checkpoint=99", 'predict.roi={begin="0 vox", shape="999 vox"}')
    assert {p.exit_code for p in Predict().validate(make_experiment().experiment(*settings))} == {66, 78}


def test_broken_weights_stop_the_run(make_experiment, micro_bundle):
    experiment = make_experiment("affinities")
    _, weights = load_bundle(bundle_folder(experiment.layout.checkpoints("train-acrlsd"), 7))
    state = {name: torch.full_like(value, torch.nan) for name, value in weights.items()}
    micro_bundle(experiment.layout, "affinities", 7, state=state)
    with pytest.raises(BadData, match="NaN"):
        experiment.run()


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")]
)
def test_a_tile_too_large_for_memory_names_the_option(error):
    def network(raw, lsds, names):
        raise error

    with pytest.raises(ConfigError, match=r"predict\.tile_shape"):
        grey_levels(network, torch.zeros((4, 4, 4), dtype=torch.uint8), None, ["affs"], Box((0, 0, 0), (4, 4, 4)), [])


def test_other_errors_of_a_network_are_not_reported_as_memory():
    def network(raw, lsds, names):
        msg = "shapes differ"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="shapes differ"):
        grey_levels(network, torch.zeros((4, 4, 4), dtype=torch.uint8), None, ["affs"], Box((0, 0, 0), (4, 4, 4)), [])


def test_the_command_returns_the_code_and_no_traceback(make_experiment):
    experiment = make_experiment()
    arguments = ["run", "--experiment", str(experiment.root), "--set", "predict.lsd_checkpont=4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 78
    assert "did you mean 'lsd_checkpoint'" in result.output
    assert "Traceback" not in result.output
