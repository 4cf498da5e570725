"""A tiny experiment with random micro networks, ready to predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsdflow_contract.arrays import MASK, RAW, ArraySpec
from lsdflow_contract.checkpoint import BestCheckpoint, Bundle, UNetSpec, write_best
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_network.bundle import save_bundle
from lsdflow_network.unet import UNet
from lsdflow_predict.stage import Predict
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume

VOXEL_NM = (10.0, 8.0, 8.0)
OFFSET_NM = (100.0, 0.0, 16.0)
TRAINED_BY = {"lsd": "train-lsd", "acrlsd": "train-acrlsd", "mtlsd": "train-acrlsd", "affinities": "train-acrlsd"}
OUTPUTS = {"lsd": {"lsds": 10}, "acrlsd": {"affs": 3}, "mtlsd": {"affs": 3, "lsds": 10}, "affinities": {"affs": 3}}


def save_micro_bundle(
    layout: ExperimentLayout, kind: str, iteration: int, lsd_sha256: str | None = None, **changes
) -> Bundle:
    """Save a random network of a kind; the LSD net pools z by 1 only, so that the nets' steps and contexts differ."""
    factors = ((1, 2, 2),) if kind == "lsd" else ((2, 2, 2),)
    channels = 11 if kind == "acrlsd" else 1
    spec = UNetSpec(in_channels=channels, num_fmaps=2, fmap_inc_factor=2, downsample_factors=factors)
    torch.manual_seed(iteration)
    network = UNet(spec, changes.get("outputs", OUTPUTS[kind]))
    shape = (0, 0, 0)
    fields: dict[str, Any] = {
        "writer": Writer.of(TRAINED_BY[kind]),
        "kind": kind,
        "iteration": iteration,
        "unet": spec,
        "outputs": OUTPUTS[kind],
        "train_input_shape_vox": shape,
        "train_output_shape_vox": shape,
        "predict_input_shape_vox": shape,
        "predict_output_shape_vox": (8, 10, 12),
        "voxel_size_nm": VOXEL_NM,
        "lsd_bundle_sha256": lsd_sha256,
        "sigma_nm": (80.0, 80.0, 80.0) if "lsds" in OUTPUTS[kind] else None,
    }
    state = changes.pop("state", network.state_dict())
    saved = save_bundle(layout.checkpoints(TRAINED_BY[kind]), Bundle(**{**fields, **changes}), state)
    best = BestCheckpoint(iteration=iteration, weights_sha256=saved.weights_sha256)
    write_best(layout.best_checkpoint(TRAINED_BY[kind]), best)
    return saved


def write_array(layout: ExperimentLayout, spec: ArraySpec, dataset: str, values: np.ndarray) -> None:
    """An array of the target volume."""
    grid = Geometry(VOXEL_NM, OFFSET_NM, values.shape)
    output = OutputArray(
        layout.target_volume, ArraySpec(dataset, spec.dtype, 0, spec.kind), grid, grid.box, (32, 32, 32)
    )
    output.create({"key": "test"})
    output.open().write(grid.box, values)


@dataclass
class Predicted:
    """A prepared experiment and ways to predict in it."""

    root: Path
    raw: np.ndarray
    mode: str

    @property
    def layout(self) -> ExperimentLayout:
        return ExperimentLayout(self.root)

    def experiment(self, *overrides: str) -> Experiment:
        return load_experiment(self.root / "experiment.toml", overrides)

    def run(self, *overrides: str) -> Manifest:
        """Predict with settings; returns the manifest."""
        Predict().run(self.experiment(*overrides))
        return read_manifest(self.layout, "predict")

    def volume(self, name: str = "affs") -> Volume:
        """An output, addressed by the target's voxels."""
        array = read_manifest(self.layout, "predict").output_array(self.layout, name)
        return open_volume(*array, Geometry(VOXEL_NM, OFFSET_NM, self.raw.shape))

    def values(self, name: str = "affs") -> np.ndarray:
        """All values of an output."""
        volume = self.volume(name)
        return volume.read(volume.box)

    def affinities(self, *overrides: str) -> np.ndarray:
        """Predict and read the affinities."""
        self.run(*overrides)
        return self.values()

    def mask(self, values: np.ndarray) -> None:
        """Write volumes/mask."""
        write_array(self.layout, MASK, "volumes/mask", values.astype(np.uint8))


@pytest.fixture
def make_experiment(tmp_path) -> Callable[..., Predicted]:
    """make_experiment(mode, shape) -> an experiment with a random target and random networks of iteration 7."""

    def make(mode: str = "acrlsd", shape: tuple[int, int, int] = (19, 22, 27)) -> Predicted:
        layout = ExperimentLayout(tmp_path)
        compute = '[compute]\nrunner = "serial"\nworkers = 2\nthreads_per_worker = 1\ndevice = "cpu"\n'
        layout.experiment_toml.write_text(f'[experiment]\nmode = "{mode}"\n{compute}[predict]\n')
        raw = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
        write_array(layout, RAW, RAW.dataset, raw)
        Manifest(writer=Writer.of("prepare"), key="k", config={}, inputs={}, outputs={}, identity="raw-1").write(layout)
        lsd = save_micro_bundle(layout, "lsd", 3) if mode == "acrlsd" else None
        save_micro_bundle(layout, mode, 7, lsd_sha256=lsd.weights_sha256 if lsd else None)
        return Predicted(tmp_path, raw, mode)

    return make


@pytest.fixture
def micro_bundle() -> Callable[..., Bundle]:
    """micro_bundle(layout, kind, iteration, **changes): save a random network, which becomes the best."""
    return save_micro_bundle
