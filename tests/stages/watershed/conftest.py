"""Small affinities, and an experiment folder in which predict has finished."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lsdflow_contract.arrays import RAW, affinities_to
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray

# daisy's worker processes must not start threads of their own: two cores are all there is
os.environ.setdefault("OMP_NUM_THREADS", "1")

MakeExperiment = Callable[..., Experiment]


def noisy_affinities(labels: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint8]:
    """Affinities (3, z, y, x) u8 like those of a network: low near faces between labels, smooth, noisy."""
    generator = np.random.default_rng(seed)
    near_face = np.zeros(labels.shape, bool)
    for axis in range(3):
        face = np.diff(labels.astype(np.int64), axis=axis) != 0
        before = [(0, int(axis == a)) for a in range(3)]
        after = [(int(axis == a), 0) for a in range(3)]
        near_face |= np.pad(face, before) | np.pad(face, after)
    clean = gaussian_filter(np.where(near_face, 0.1, 0.95), 0.7)
    noise = gaussian_filter(generator.normal(0, 1, (3, *labels.shape)), (0, 1.5, 1.5, 1.5))
    values = clean + 0.15 * noise / noise.std() + generator.normal(0, 0.05, noise.shape)
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


@pytest.fixture
def affs() -> NDArray[np.uint8]:
    """(3, 30, 44, 52) u8 of 40 cells."""
    return noisy_affinities(voronoi_labels((30, 44, 52), 40, seed=3))


@pytest.fixture
def make_experiment(tmp_path: Path) -> MakeExperiment:
    """A folder with a target, a finished predict that gave `affs`, and the given [watershed] table."""

    def make(
        affs: NDArray[np.uint8],
        table: str = "",
        runner: str = "serial",
        name: str = "experiment",
        voxel_size_nm: Nm3 = (10.0, 10.0, 10.0),
        begin_vox: Vox3 = (0, 0, 0),
        target_vox: Vox3 | None = None,
        neighborhood: tuple[Vox3, ...] = (),
    ) -> Experiment:
        root = tmp_path / name
        root.mkdir(parents=True)
        path = root / "experiment.toml"
        path.write_text(f'[compute]\nrunner = "{runner}"\nworkers = 2\n[watershed]\n{table}\n')
        experiment = load_experiment(path)
        z, y, x = affs.shape[1:]
        grid = Geometry(voxel_size_nm, (100.0, 0.0, 40.0), target_vox or (z, y, x))
        raw = OutputArray(experiment.layout.target_volume, RAW, grid, grid.box, grid.shape_vox, zarr_format=2)
        raw.create({"key": "raw"})
        raw.open().write(grid.box, np.zeros(grid.shape_vox, np.uint8))
        box = Box(begin_vox, (z, y, x))
        container = experiment.layout.result("predict", "affs") / "predictions.zarr"
        output = OutputArray(container, affinities_to(neighborhood), grid, box, box.shape_vox)
        output.create({"key": "affs"})
        output.open().write(box, affs)
        Manifest(
            writer=Writer.of("predict"),
            key="affs",
            config={},
            inputs={},
            outputs={"affs": str(output.folder.relative_to(root))},
            identity="affs-identity",
        ).write(experiment.layout)
        return experiment

    return make
