"""What predict needs before faults hit it: a noisy target, and an LSD and an AcrLSD network that nobody trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import BestCheckpoint, Kind, UNetSpec, write_best
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_network.bundle import save_bundle
from lsdflow_network.shapes import input_shape_for_output
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet
from lsdflow_runtime.io.volumes import OutputArray

TILE_VOX = (8, 8, 8)


def write_predictable(folder: Path, tables: str, grid: Geometry) -> None:
    """An experiment in which prepare and both trainings have finished."""
    folder.mkdir()
    layout = ExperimentLayout(folder)
    layout.experiment_toml.write_text(tables)
    raw = np.random.default_rng(0).integers(0, 256, grid.shape_vox).astype(np.uint8)
    output = OutputArray(layout.target_volume, RAW, grid, grid.box, grid.shape_vox)
    output.create({"key": "made by the test"})
    output.open().write(grid.box, raw)
    Manifest(
        writer=Writer.of("prepare"), key="prepare", config={}, inputs={}, outputs={}, identity="prepare of the test"
    ).write(layout)
    lsd = _save_network(layout, "train-lsd", grid, "lsd", {"lsds": 10})
    _save_network(layout, "train-acrlsd", grid, "acrlsd", {"affs": 3}, in_channels=11, lsd_bundle_sha256=lsd)


def _save_network(
    layout: ExperimentLayout,
    stage: str,
    grid: Geometry,
    kind: Kind,
    outputs: dict[str, int],
    in_channels: int = 1,
    **more: Any,
) -> str:
    """Save it as the best of a training; the hash of its weights."""
    spec = UNetSpec(in_channels=in_channels, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))
    torch.manual_seed(in_channels)
    plain = untrained_bundle(kind, spec, outputs, input_shape_for_output(spec, TILE_VOX))
    bundle = plain.model_copy(update={"voxel_size_nm": grid.voxel_size_nm, **more})
    saved = save_bundle(layout.checkpoints(stage), bundle, UNet(spec, outputs).state_dict())
    best = BestCheckpoint(iteration=saved.iteration, weights_sha256=saved.weights_sha256)
    write_best(layout.best_checkpoint(stage), best)
    return saved.weights_sha256
