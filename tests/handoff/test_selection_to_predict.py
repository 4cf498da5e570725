"""From checkpoints to the prediction: the real stages score two networks, and predict uses the better one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from lsdflow_command.stage import load_stage
from lsdflow_contract.checkpoint import (
    BestCheckpoint,
    Bundle,
    UNetSpec,
    bundle_folder,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import membrane_raw, voronoi_labels
from lsdflow_launch.checkpoint_selection.region import region_of
from lsdflow_launch.checkpoint_selection.selection import Selection
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.run import run_chain
from lsdflow_network.bundle import save_bundle
from lsdflow_network.unet import UNet

STAGE = "train-acrlsd"
BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[2] / "bin"))
SHAPE_VOX: Vox3 = (48, 36, 40)
HELD_OUT = 24
TABLES = """[experiment]
mode = "affinities"
profile = "tiny"
[compute]
runner = "serial"
workers = 1
device = "cpu"
[prepare]
training = [{ name = "a", raw = "input.zarr" }]
target = { raw = "input.zarr" }
[train-acrlsd]
num_fmaps = 2
fmap_inc_factor = 2
downsample_factors = [[2, 2, 2]]
input_shape_vox = [28, 28, 28]
predict_input_shape_vox = [32, 32, 32]
validation_fraction = 0.5
[watershed]
block_shape = "24 vox"
context = "8 vox"
min_seed_distance_vox = 6
[agglomerate]
merge_functions = ["hist_quant_75", "mean"]
[segment]
thresholds_step = 0.1
"""
SPEC = UNetSpec(in_channels=1, num_fmaps=1, fmap_inc_factor=1, downsample_factors=((2, 2, 2),))


def affinities_by_grey_value(*, seeing: bool) -> UNet:
    """A network that knows membranes by their grey value; or one that has forgotten everything: affinity 0."""
    network = UNet(SPEC, {"affs": 3})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        for passed in (network.down[0], network.merge[0]):
            for conv in passed.convs:  # type: ignore[union-attr]
                conv.weight[0, 0, 1, 1, 1] = 1.0
        network.down[0].convs[0].bias[0] = 1.0  # type: ignore[union-attr, index]
        head = network.heads["affs"]
        head.weight[:] = 20.0 if seeing else 0.0
        head.bias[:] = -18.0 if seeing else -20.0
    return network


def leave_checkpoint(experiment: Experiment, iteration: int, loss: float, *, seeing: bool) -> Bundle:
    """A checkpoint as a training leaves it."""
    bundle = Bundle(
        writer=Writer.of(STAGE),
        kind="affinities",
        iteration=iteration,
        unet=SPEC,
        outputs={"affs": 3},
        train_input_shape_vox=(28, 28, 28),
        train_output_shape_vox=(16, 16, 16),
        predict_input_shape_vox=(32, 32, 32),
        predict_output_shape_vox=(20, 20, 20),
        voxel_size_nm=(8.0, 8.0, 8.0),
        validation_loss=loss,
    )
    network = affinities_by_grey_value(seeing=seeing)
    return save_bundle(experiment.layout.checkpoints(STAGE), bundle, network.state_dict())


def run_here(stage: str, arguments: Sequence[str]) -> int:
    """The stage in this process: no time for imports."""
    load_stage(stage).run(load_experiment(Path(arguments[-1])))
    return 0


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Prepared, and trained: iteration 10 sees membranes, iteration 20 predicts nothing but has the lower loss.

    Where the mask says ignore, labels are nonsense: each voxel a neuron.
    """
    root = tmp_path_factory.mktemp("checks")
    labels = voronoi_labels(SHAPE_VOX, 5, 3)
    raw, mask = membrane_raw(labels), np.ones(SHAPE_VOX, np.uint8)
    nonsense = np.s_[:, :10, :]
    labels[nonsense] = np.arange(labels[nonsense].size).reshape(labels[nonsense].shape) + 100
    mask[nonsense] = 0
    for name, values in (("raw", raw), ("labels/neuron_ids", labels), ("labels/mask", mask)):
        attributes = {"resolution": [8, 8, 8], "offset": [80, 0, 0]}
        zarr.create_array(root / "input.zarr/volumes" / name, data=values, zarr_format=2, attributes=attributes)
    (root / "experiment.toml").write_text(TABLES)
    loaded = load_experiment(root)
    run_here("prepare", [str(root)])
    (root / "results" / STAGE / "0a0a0a0a").mkdir(parents=True)
    (root / "train").mkdir()
    (root / "train" / STAGE).symlink_to(f"../results/{STAGE}/0a0a0a0a")
    leave_checkpoint(loaded, 10, loss=0.9, seeing=True)
    nothing = leave_checkpoint(loaded, 20, loss=0.1, seeing=False)
    best = BestCheckpoint(iteration=20, weights_sha256=nothing.weights_sha256, validation_loss=0.1)
    write_best(loaded.layout.best_checkpoint(STAGE), best)
    nothing_else: dict[str, Any] = {"config": {}, "inputs": {}, "outputs": {}, "identity": "i"}
    facts = {"validation_fraction": 0.5}
    Manifest(writer=Writer.of(STAGE), key="k", facts=facts, **nothing_else).write(loaded.layout)
    return loaded


@pytest.mark.proves("TLS-23")
def test_the_better_network_by_labels_that_count_is_chosen_and_predict_takes_it(experiment: Experiment) -> None:
    box = {"raw_shape_vox": SHAPE_VOX, "labels_begin_vox": (0, 0, 0), "labels_shape_vox": SHAPE_VOX}
    region = region_of("a", {**box, "held_out_sections": HELD_OUT})
    selection = Selection(experiment, region, caller=run_here)
    assert selection.update() == 0
    seeing, blind = selection.rows()
    assert (seeing.run.at, blind.run.at) == ({"iteration": "10"}, {"iteration": "20"})
    assert seeing.scores["voi"] < 0.8 < 1.2 < blind.scores["voi"]
    assert blind.scores["voi_split"] == 0
    best = read_best(experiment.layout.best_checkpoint(STAGE))
    assert (best.iteration, best.chosen_by) == (10, "voi")
    run_here("predict", [str(experiment.path)])
    manifest = read_manifest(experiment.layout, "predict")
    assert manifest.inputs["network"] == best.weights_sha256
    assert best.calibration is not None
    assert list(best.calibration.thresholds) == ["hist_quant_75", "mean"]


def test_the_command_asks_the_training_for_the_region_and_computes_nothing_twice(experiment: Experiment) -> None:
    (table,) = (experiment.layout.train_dir(STAGE) / "selection").glob("*/merged/runs.csv")
    before = table.stat().st_mtime_ns
    program = "from lsdflow_launch.cli import main; main()"
    command = [sys.executable, "-c", program, "select-checkpoint", str(experiment.layout.root)]
    environment = {**os.environ, "LSDFLOW_BIN": str(BIN)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "best: iteration 10" in done.stdout
    assert f"held out: a z[{SHAPE_VOX[0] - HELD_OUT}:{SHAPE_VOX[0]}]" in done.stdout
    assert table.stat().st_mtime_ns == before


def test_a_run_chooses_before_predict_and_segment_takes_the_threshold_of_the_held_out_sections(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSDFLOW_BIN", str(BIN))
    layout, calls = experiment.layout, list[str]()
    nothing = read_bundle(bundle_folder(layout.checkpoints(STAGE), 20))
    write_best(layout.best_checkpoint(STAGE), BestCheckpoint(iteration=20, weights_sha256=nothing.weights_sha256))

    def call(stage: str, arguments: Sequence[str]) -> int:
        calls.append(stage)
        return run_here(stage, arguments)

    stages = ("predict", "watershed", "agglomerate", "segment")
    assert run_chain(experiment, stages, call, ask_stage) == ("", 0)
    best, facts = read_best(layout.best_checkpoint(STAGE)), read_manifest(layout, "segment").facts
    assert (best.iteration, best.chosen_by, facts["advice"]["method"]) == (10, "voi", "network")
    assert best.calibration is not None
    assert facts["merge_function"] == best.merge_function
    assert facts["threshold"] == best.calibration.thresholds[facts["merge_function"]]
    other = next(name for name in best.calibration.thresholds if name != best.merge_function)
    load_stage("segment").run(load_experiment(experiment.path, [f"segment.merge_function={other}"]))
    asked_for = read_manifest(layout, "segment").facts
    assert (asked_for["merge_function"], asked_for["threshold"]) == (other, best.calibration.thresholds[other])
    calls.clear()
    assert run_chain(experiment, stages, call, lambda *_: pytest.fail("it was chosen before")) == ("", 0)
    assert tuple(calls) == stages
