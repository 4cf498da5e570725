"""A small experiment whose fragments and graph are finished: truth cells cut into fragments, scored by the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from lsdflow_contract.arrays import FRAGMENTS, LABELS, RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.rag_store import FilesRagStore

# The first call of a compiled kernel takes a second: property tests here have no deadline.
settings.register_profile("compiled-kernels", deadline=None)
settings.load_profile("compiled-kernels")

GRID = Geometry((40.0, 8.5, 8.5), (400.0, 0.0, 17.0), (20, 24, 26))
BLOCK_VOX = (8, 8, 16)
CELLS = 7
BLOCKS = 2  # of the graph's writers

MakeExperiment = Callable[..., Experiment]


def cells() -> np.ndarray:
    """The truth: 7 cells, a slab without labels."""
    labels = voronoi_labels(GRID.shape_vox, CELLS, 4)
    labels[:, :, :2] = 0
    return labels


def fragments_of(labels: np.ndarray) -> np.ndarray:
    """Cells cut by a grid of 6 voxels; ids have gaps and do not start at 1; some voxels belong to no fragment."""
    z, y, x = (np.arange(n) // 6 for n in labels.shape)
    cut = (z[:, None, None] * 100 + y[None, :, None] * 10 + x[None, None, :]).astype(np.uint64)
    _, dense = np.unique(np.stack([labels.ravel(), cut.ravel()]), axis=1, return_inverse=True)
    fragments = (dense.reshape(labels.shape).astype(np.uint64) + np.uint64(5)) * np.uint64(1000)
    fragments[0, :3, :3] = 0
    return fragments


def graph_of(fragments: np.ndarray, labels: np.ndarray) -> tuple[RagNodes, RagEdges]:
    """Nodes with their sizes; an edge per adjacency: 0.1 to 0.3 inside a cell, 0.7 to 0.9 between cells, one null."""
    ids, first, sizes = np.unique(fragments, return_index=True, return_counts=True)
    cell = dict(zip(ids.tolist(), labels.ravel()[first].tolist(), strict=True))
    pairs = set()
    for axis in range(3):
        lower, upper = np.moveaxis(fragments, axis, 0)[:-1], np.moveaxis(fragments, axis, 0)[1:]
        both = np.stack([lower.ravel(), upper.ravel()], axis=1)
        pairs |= {tuple(sorted(p)) for p in both.tolist() if p[0] != p[1] and 0 not in p}
    u, v = np.array(sorted(pairs), np.uint64).T
    rng = np.random.default_rng(0)
    same = np.array([cell[int(a)] == cell[int(b)] for a, b in zip(u, v, strict=True)])
    score = np.where(same, rng.uniform(0.1, 0.3, len(u)), rng.uniform(0.7, 0.9, len(u))).astype(np.float32)
    score[np.flatnonzero(~same)[0]] = np.nan
    real = ids != 0
    nodes = RagNodes(ids[real], np.zeros((real.sum(), 3)), sizes[real].astype(np.uint64))
    return nodes, RagEdges(u, v, score)


def manifest(stage: str, key: str, inputs: dict[str, str], config: dict[str, object]) -> Manifest:
    writer = Writer(stage=stage, version="0.1.0")
    given = {"key": key, "config": config, "inputs": inputs, "identity": f"{key}-identity", "facts": {"blocks": BLOCKS}}
    outputs = {"fragments": "fragments.zarr/volumes/fragments"} if stage == "watershed" else {}
    return Manifest(writer=writer, outputs=outputs, **given)


def build(root: Path, *, truth: bool) -> None:
    """Write target, truth, fragments, graph and manifests."""
    root.mkdir()
    tables = ('[experiment]\nname = "cells"', '[compute]\nrunner = "serial"', "[segment]\nthresholds_step = 0.05\n")
    (root / "experiment.toml").write_text("\n".join(tables))
    labels = cells()
    fragments = fragments_of(labels)
    arrays = [(root / "results" / "prepare" / "target.zarr", RAW, np.zeros(GRID.shape_vox, np.uint8))]
    arrays += [(root / "results" / "prepare" / "target.zarr", LABELS, labels)] if truth else []
    arrays += [(root / "fragments.zarr", FRAGMENTS, fragments)]
    for path, spec, values in arrays:
        output = OutputArray(path, spec, GRID, GRID.box, BLOCK_VOX)
        output.create({"key": "made by the test"})
        output.open().write(Box((0, 0, 0), GRID.shape_vox), values)
    experiment = load_experiment(root)
    nodes, edges = graph_of(fragments, labels)
    store = FilesRagStore(experiment.layout.store)
    half, some = len(nodes) // 2, len(edges) // 3
    for block, part in enumerate((slice(0, half), slice(half, None))):
        store.write_nodes("watershed-key", block, RagNodes(nodes.id[part], nodes.center_nm[part], nodes.size_vox[part]))
    for block, part in enumerate((slice(0, some), slice(some, None))):
        rows = RagEdges(edges.u[part], edges.v[part], edges.merge_score[part])
        store.write_edges("agglomerate-key", "hist_quant_75", block, rows)
        store.write_edges("agglomerate-key", "mean", block, RagEdges(rows.u, rows.v, rows.merge_score / np.float32(2)))
    manifest("watershed", "watershed-key", {}, {}).write(experiment.layout)
    inputs = {"watershed": "watershed-key-identity"}
    config: dict[str, object] = {"merge_functions": ["hist_quant_75", "mean"]}
    manifest("agglomerate", "agglomerate-key", inputs, config).write(experiment.layout)


@pytest.fixture
def make_experiment(tmp_path: Path) -> MakeExperiment:
    """Make (once per name) the finished graph in tmp_path/name and load it with overrides."""

    def make(name: str = "a", *overrides: str, truth: bool = True) -> Experiment:
        if not (tmp_path / name).exists():
            build(tmp_path / name, truth=truth)
        return load_experiment(tmp_path / name, list(overrides))

    return make
