"""From a network of another program to the prediction: the real command imports it, predict runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import torch
import zarr

from lsdflow_contract.checkpoint import read_best
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_predict.stage import Predict
from lsdflow_prepare.stage import Prepare

predict = Predict()
prepare = Prepare()

BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[2] / "bin"))
TABLES = """[experiment]
mode = "affinities"
profile = "tiny"
[compute]
runner = "serial"
device = "cpu"
[prepare]
target = { raw = "input.zarr" }
training = [{ name = "a", raw = "input.zarr" }]
"""


def lineage_state() -> dict[str, torch.Tensor]:
    """Weights under the names that funlib.learn.torch gives them: two levels, channels kept on the way up."""
    kernel, half = (3, 3, 3), (2, 2, 2)
    shapes = {
        "unet.l_conv.0.conv_pass.0": (4, 1, *kernel),
        "unet.l_conv.0.conv_pass.2": (4, 4, *kernel),
        "unet.l_conv.1.conv_pass.0": (8, 4, *kernel),
        "unet.l_conv.1.conv_pass.2": (8, 8, *kernel),
        "unet.r_up.0.0.up": (8, 8, *half),
        "unet.r_conv.0.0.conv_pass.0": (4, 12, *kernel),
        "unet.r_conv.0.0.conv_pass.2": (4, 4, *kernel),
        "aff_head.conv_pass.0": (3, 4, 1, 1, 1),
    }
    random = torch.Generator().manual_seed(1)
    state = {f"{name}.weight": 0.2 * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    return state | {f"{name}.bias": torch.full((shape[0],), 0.01) for name, shape in shapes.items()}


def test_predict_runs_an_imported_network(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (20, 22, 24), np.uint8)
    for name, values in (("raw", grey), ("labels/neuron_ids", np.ones(grey.shape, np.uint64))):
        attributes = {"resolution": [8, 8, 8], "offset": [0, 0, 0]}
        zarr.create_array(tmp_path / "input.zarr/volumes" / name, data=values, zarr_format=2, attributes=attributes)
    (tmp_path / "experiment.toml").write_text(TABLES)
    (tmp_path / "config.json").write_text('{"input_shape": [36, 36, 36], "output_shape": [20, 20, 20]}')
    prepare.run(load_experiment(tmp_path))
    torch.save({"model_state_dict": lineage_state()}, tmp_path / "model_checkpoint_5000")
    command = [str(BIN / "train-acrlsd"), "import-checkpoint", str(tmp_path), "--voxel-size", "8 nm"]
    command += ["--from", str(tmp_path / "model_checkpoint_5000")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    experiment = load_experiment(tmp_path)
    assert predict.validate(experiment) == []
    predict.run(experiment)
    best = read_best(experiment.layout.best_checkpoint("train-acrlsd"))
    assert read_manifest(experiment.layout, "predict").inputs["network"] == best.weights_sha256
    affs = zarr.open_array(made(experiment.layout, "predict") / "volumes/affs", mode="r")[:]
    assert affs.shape == (3, *grey.shape)
    assert affs.std() > 1
