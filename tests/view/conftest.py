"""A tiny experiment whose stages have finished: anisotropic voxels, an offset, labels that cover a part of the raw."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.arrays import AFFS, FRAGMENTS, LABELS, RAW, SEGMENTATION, ArraySpec
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import affinities_of, membrane_raw, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray

# Slow references and shared experiments are modules of their own: test files do not import each other.
sys.path.append(str(Path(__file__).parent / "reference"))

VOXEL_SIZE_NM = (40.0, 9.3, 9.3)
BEGIN_VOX = (3, 5, 7)
SHAPE_VOX = (20, 90, 100)
SEGMENTED = Box((2, 9, 0), (17, 80, 97))


@dataclass(frozen=True)
class Tiny:
    """The experiment, the path of its raw data, and which part of it is segmented."""

    experiment: Experiment
    grid: Geometry
    begin_vox: Vox3
    segmented: Box

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.experiment.layout.root


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Read only. Raw and truth in zarr 2, networks' output and labels in zarr 3; the segmentation in shards."""
    root = tmp_path_factory.mktemp("tiny")
    (root / "experiment.toml").write_text('[experiment]\nname = "tiny"\n')
    z, y, x = (b * s for b, s in zip(BEGIN_VOX, VOXEL_SIZE_NM, strict=True))
    grid = Geometry(VOXEL_SIZE_NM, (z, y, x), SHAPE_VOX)
    labels = voronoi_labels(SHAPE_VOX, 7, seed=3)
    labels[:, :4] = 0
    part = labels[SEGMENTED.slices()] * np.uint64(2**40 + 1)
    _write(root / "data/target.zarr", RAW, grid, grid.box, membrane_raw(labels), (16, 32, 32))
    _write(root / "data/target.zarr", LABELS, grid, grid.box, labels, (16, 32, 32))
    _write(root / "affs.zarr", AFFS, grid, SEGMENTED, affinities_of(part), (16, 32, 32))
    _write(root / "fragments.zarr", FRAGMENTS, grid, SEGMENTED, part + (part > 0), (8, 32, 64))
    _write(root / "segmentation.zarr", SEGMENTATION, grid, SEGMENTED, part, (8, 128, 128))
    experiment = load_experiment(root)
    _finish(experiment, "prepare", {"target": "data/target.zarr"})
    _finish(experiment, "predict", {"affs": f"affs.zarr/{AFFS.dataset}"})
    _finish(experiment, "watershed", {"fragments": f"fragments.zarr/{FRAGMENTS.dataset}"})
    _finish(experiment, "segment", {"segmentation": f"segmentation.zarr/{SEGMENTATION.dataset}"})
    return Tiny(experiment, grid, BEGIN_VOX, SEGMENTED)


def _write(path: Path, spec: ArraySpec, grid: Geometry, box: Box, values: np.ndarray, write_shape: Vox3) -> None:
    output = OutputArray(path, spec, grid, box, write_shape, zarr_format=2 if path.name == "target.zarr" else 3)
    output.create({"key": path.name})
    output.open().write(box, values.astype(spec.dtype))


def _finish(experiment: Experiment, stage: str, outputs: dict[str, str]) -> None:
    writer = Writer(stage=stage, version="0")
    Manifest(writer=writer, key="k", config={}, inputs={}, outputs=outputs, identity=f"of {stage}").write(
        experiment.layout
    )


@pytest.fixture(scope="session")
def viewed_experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Read only: what viewers show, with a table for each of three thresholds (see the module of this name)."""
    from viewed_experiment import make_viewed_experiment

    root = tmp_path_factory.mktemp("viewed")
    make_viewed_experiment(root)
    return load_experiment(root)
