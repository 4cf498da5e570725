"""Whether the scored region was trained on: labels of the same files, in place, without the sections held out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_evaluate.scores.trained import trained_part
from lsdflow_network.bundle import save_bundle
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet
from lsdflow_runtime.io.volumes import OutputArray

NM = (10.0, 10.0, 10.0)
TARGET = Geometry(NM, (100.0, 0.0, 0.0), (20, 16, 16))
WHOLE = TARGET.box


def write_volume(layout: ExperimentLayout, name: str, grid: Geometry, files: str) -> str:
    """A prepared volume without voxels; its path in the experiment."""
    path = layout.result("prepare", "p") / f"{name}.zarr"
    for spec in (RAW, LABELS):
        OutputArray(path, spec, grid, grid.box, (8, 8, 8), 2).create({"key": "p", "inputs": {"raw": files}})
    return str(path.relative_to(layout.root))


def write_manifest(layout: ExperimentLayout, stage: str, **more: Any) -> None:
    facts = {"key": stage, "config": {}, "inputs": {}, "outputs": {}, "identity": stage}
    Manifest(writer=Writer.of(stage), **{**facts, **more}).write(layout)


def make(
    root: Path, training: dict[str, tuple[Geometry, str]], held_out: float = 0.0, used: str = ""
) -> ExperimentLayout:
    """An experiment whose target was made of files "f"; `used`: the hash of the network, default: that trained here."""
    root.mkdir()
    layout = ExperimentLayout(root)
    outputs = {"target": write_volume(layout, "target", TARGET, "f")}
    outputs |= {f"training/{name}": write_volume(layout, name, *made) for name, made in training.items()}
    write_manifest(layout, "prepare", outputs=outputs)
    spec = UNetSpec(in_channels=1, num_fmaps=1, fmap_inc_factor=1, downsample_factors=((2, 2, 2),))
    bundle = untrained_bundle("affinities", spec, {"affs": 3}, (24, 24, 24))
    saved = save_bundle(layout.checkpoints("train-acrlsd"), bundle, UNet(spec, {"affs": 3}).state_dict())
    write_manifest(layout, "train-acrlsd", facts={"validation_fraction": held_out})
    write_manifest(layout, "predict", inputs={"network": used or saved.weights_sha256})
    return layout


FIRST_HALF = Geometry(NM, (100.0, 0.0, 0.0), (10, 16, 16))


@pytest.mark.parametrize(
    ("training", "held_out", "region", "share", "volumes"),
    [
        ({"a": (FIRST_HALF, "f")}, 0.0, WHOLE, 0.5, ["a"]),
        ({"a": (FIRST_HALF, "f")}, 0.2, WHOLE, 0.4, ["a"]),
        ({"a": (FIRST_HALF, "f")}, 0.0, Box((10, 0, 0), (10, 16, 16)), 0.0, []),
        ({"a": (FIRST_HALF, "f")}, 0.0, Box((5, 0, 0), (10, 16, 16)), 0.5, ["a"]),
        ({"a": (FIRST_HALF, "other files")}, 0.0, WHOLE, 0.0, []),
        ({"a": (FIRST_HALF, "f"), "b": (TARGET, "f")}, 0.0, WHOLE, 1.0, ["a", "b"]),
    ],
)
def test_the_share_is_that_of_trained_labels_in_the_region(
    tmp_path: Path,
    training: dict[str, tuple[Geometry, str]],
    held_out: float,
    region: Box,
    share: float,
    volumes: list[str],
) -> None:
    layout = make(tmp_path / "exp", training, held_out)
    assert trained_part(layout, region) == {"share": pytest.approx(share), "volumes": volumes}


def test_scores_do_not_need_the_training_volumes(tmp_path: Path) -> None:
    layout = make(tmp_path / "exp", {"a": (FIRST_HALF, "f")})
    shutil.rmtree(layout.prepared_volume("training/a"))
    assert trained_part(layout, WHOLE) == {}


def test_nothing_is_said_of_a_network_from_elsewhere(tmp_path: Path) -> None:
    layout = make(tmp_path / "exp", {"a": (FIRST_HALF, "f")}, used="0" * 64)
    assert trained_part(layout, WHOLE) == {}
