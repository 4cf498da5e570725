"""Small affinities and fragments, and an experiment folder in which predict and watershed have finished."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.arrays import AFFS, FRAGMENTS, RAW, ArraySpec
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import voronoi_labels
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import OutputArray

MakeExperiment = Callable[..., Experiment]
SHAPE: Vox3 = (22, 30, 26)
WATERSHED_BLOCK: Vox3 = (8, 16, 8)


@pytest.fixture
def labels() -> NDArray[np.uint64]:
    """(22, 30, 26) of 60 cells, some voxels without any."""
    labels = voronoi_labels(SHAPE, 60, seed=5)
    labels[labels % np.uint64(11) == 0] = 0
    return labels


@pytest.fixture
def affs() -> NDArray[np.uint8]:
    """Affinities (3, 22, 30, 26) u8 of every value."""
    generator = np.random.default_rng(2)
    smooth = np.repeat(np.repeat(generator.random((3, 22, 10, 13)), 3, axis=2), 2, axis=3)
    return ((0.7 * smooth + 0.3 * generator.random((3, *SHAPE))) * 255).astype(np.uint8)


def cut_at_blocks(labels: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Fragments named by blocks: id = block number * voxels per block + rank of the label in its block."""
    fragments = np.zeros_like(labels)
    voxels_per_block = math.prod(WATERSHED_BLOCK)
    for block in BlockPlan(Box((0, 0, 0), labels.shape), WATERSHED_BLOCK).blocks():
        part = labels[block.write.slices()]
        found = np.unique(part[part > 0])
        rank = np.searchsorted(found, part).astype(np.uint64) + np.uint64(1 + block.number * voxels_per_block)
        fragments[block.write.slices()] = np.where(part > 0, rank, np.uint64(0))
    return fragments


def write_array(path: Path, spec: ArraySpec, grid: Geometry, values: NDArray[Any]) -> str:
    """Write a whole array; returns its folder relative to the experiment."""
    output = OutputArray(path, spec, grid, grid.box, grid.shape_vox)
    output.create({"key": f"{spec.dataset}-key"})
    output.open().write(grid.box, values)
    return str(output.folder)


def write_manifest(experiment: Experiment, stage: str, **values: Any) -> None:
    """The manifest of a finished stage."""
    manifest = Manifest(writer=Writer.of(stage), identity=f"{stage}-identity", **values)
    manifest.write(experiment.layout)


@pytest.fixture
def make_experiment(tmp_path: Path, affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> MakeExperiment:
    """An experiment in which predict and watershed have finished, with the given [agglomerate] table."""

    def make(
        table: str = "", runner: str = "serial", name: str = "experiment", fragments: NDArray[np.uint64] | None = None
    ) -> Experiment:
        root = tmp_path / name
        root.mkdir(parents=True)
        (root / "experiment.toml").write_text(f'[compute]\nrunner = "{runner}"\nworkers = 2\n[agglomerate]\n{table}\n')
        experiment = load_experiment(root)
        layout = experiment.layout
        grid = Geometry((40.0, 8.0, 8.0), (0.0, 80.0, 0.0), SHAPE)
        made = cut_at_blocks(labels) if fragments is None else fragments
        write_array(layout.target_volume, RAW, grid, np.zeros(SHAPE, np.uint8))
        affs_folder = write_array(layout.result("predict", "p") / "predictions.zarr", AFFS, grid, affs)
        fragments_folder = write_array(layout.results / "watershed" / "made" / "fragments.zarr", FRAGMENTS, grid, made)
        write_manifest(experiment, "predict", key="p", config={}, inputs={}, outputs={"affs": affs_folder})
        resolved = {
            "total_begin_vox": [0, 0, 0],
            "total_shape_vox": list(SHAPE),
            "block_shape_vox": list(WATERSHED_BLOCK),
            "context_vox": [2, 4, 4],
            "voxels_per_block": math.prod(WATERSHED_BLOCK),
        }
        write_manifest(
            experiment,
            "watershed",
            key="volumes/fragments-key",
            config={"id_mode": "blocks", "resolved": resolved},
            inputs={"predict": "predict-identity"},
            outputs={"fragments": fragments_folder},
        )
        return experiment

    return make
