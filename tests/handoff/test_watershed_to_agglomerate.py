"""Fragments that watershed wrote are what agglomerate reads; on real neurons the scores lead to the truth."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from lsdflow_agglomerate.scoring import dense_labels, touching_pairs
from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFS, FRAGMENTS, RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, voronoi_labels
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.rag_store import FilesRagStore
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()


def truth_affinities(labels: NDArray[np.uint64], noise: float = 1.0) -> NDArray[np.uint8]:
    """Truth with its boundary grown by one voxel, smoothed, with shared, own and white noise."""
    generator = np.random.default_rng(0)
    cell = np.ones(labels.shape, bool)
    for axis in range(3):
        face = np.diff(labels, axis=axis) != 0
        for before in (1, 0):
            cell &= ~np.pad(face, [(before, 1 - before) if axis == a else (0, 0) for a in range(3)])
    inner = np.where(cell, labels, 0)
    clean = np.stack([(inner == np.roll(inner, 1, axis)) & cell for axis in range(3)]).astype(np.float32)
    shared, *own = (gaussian_filter(generator.standard_normal(labels.shape), 3) for _ in range(4))
    values = gaussian_filter(clean, (0, 1, 1, 1)) + noise * (0.15 * shared / shared.std())
    values += noise * 0.1 * np.stack([channel / channel.std() for channel in own])
    values += noise * 0.1 * generator.standard_normal(values.shape)
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def predicted(root: Path, affs: NDArray[np.uint8], tables: str) -> Experiment:
    """An experiment in which predict has finished with these affinities."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text(f'[compute]\nrunner = "serial"\n{tables}')
    experiment = load_experiment(root)
    z, y, x = affs.shape[1:]
    grid = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), (z, y, x))
    raw = OutputArray(experiment.layout.target_volume, RAW, grid, grid.box, grid.shape_vox)
    raw.create({"key": "raw"})
    raw.open().write(grid.box, np.zeros(grid.shape_vox, np.uint8))
    output = OutputArray(
        experiment.layout.result("predict", "affs") / "predictions.zarr", AFFS, grid, grid.box, grid.shape_vox
    )
    output.create({"key": "affs"})
    output.open().write(grid.box, affs)
    Manifest(
        writer=Writer.of("predict"),
        key="affs",
        config={},
        inputs={},
        outputs={"affs": str(output.folder.relative_to(root))},
        identity="affs",
    ).write(experiment.layout)
    return experiment


def run_both(experiment: Experiment) -> tuple[NDArray[np.uint64], RagNodes, RagEdges]:
    """Fragments, nodes and edges after both stages."""
    watershed.run(experiment)
    agglomerate.run(experiment)
    store = FilesRagStore(experiment.layout.store)
    keys = {stage: read_manifest(experiment.layout, stage).key for stage in ("watershed", "agglomerate")}
    fragments = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    edges = RagEdges.concatenate(list(store.iter_edges(keys["agglomerate"], "hist_quant_75")))
    return fragments.read(fragments.box), RagNodes.concatenate(list(store.iter_nodes(keys["watershed"]))), edges


@pytest.mark.parametrize("id_mode", ["seamless", "blocks"])
@pytest.mark.parametrize("shape", [(40, 33, 50), (10, 12, 14)])
def test_the_graph_of_all_blocks_is_the_graph_of_the_volume(
    tmp_path: Path, shape: tuple[int, int, int], id_mode: str
) -> None:
    affs = truth_affinities(voronoi_labels(shape, 30))
    table = (
        f'[watershed]\nid_mode = "{id_mode}"\nblock_shape = "16 vox"\ncontext = "4 vox"\nmin_seed_distance_vox = 5\n'
    )
    fragments, nodes, edges = run_both(predicted(tmp_path / "experiment", affs, table))
    ids, sizes = np.unique(fragments[fragments > 0], return_counts=True)
    assert np.array_equal(np.unique(nodes.id), ids)
    counted = np.zeros(len(ids), np.int64)
    np.add.at(counted, np.searchsorted(ids, nodes.id), nodes.size_vox.astype(np.int64))
    assert np.array_equal(counted, sizes)
    dense, names = dense_labels(fragments)
    u, v = touching_pairs(dense)
    wanted = sorted(zip(names[u].tolist(), names[v].tolist(), strict=True))
    assert sorted(zip(edges.u.tolist(), edges.v.tolist(), strict=True)) == wanted
    assert len(wanted) > 0


def segments(fragments: NDArray[np.uint64], nodes: RagNodes, edges: RagEdges, threshold: float) -> NDArray[np.uint64]:
    """Fragments joined by all edges up to the threshold."""
    ids = np.unique(nodes.id)
    chosen = edges.merge_score <= threshold
    u, v = (np.searchsorted(ids, ends[chosen]) for ends in (edges.u, edges.v))
    graph = coo_matrix((np.ones(u.size), (u, v)), shape=(len(ids), len(ids)))
    _, component = connected_components(graph, directed=False)
    return (component[np.minimum(np.searchsorted(ids, fragments), len(ids) - 1)] + 1).astype(np.uint64)


@pytest.mark.parametrize("id_mode", ["seamless", "blocks"])
def test_real_neurons_come_out_of_noisy_affinities(tmp_path: Path, shared_data: Path, id_mode: str) -> None:
    cube = zarr.open_array(shared_data / "fib25" / "trvol-250-2.zarr" / "volumes/labels/neuron_ids", mode="r")
    truth = np.asarray(cube[60:156, 60:156, 60:156]).astype(np.uint64)
    table = f'[watershed]\nid_mode = "{id_mode}"\nblock_shape = "48 vox"\ncontext = "16 vox"\n'
    graph = run_both(predicted(tmp_path / "experiment", truth_affinities(truth), table))
    scores = [score(contingency(segments(*graph, t), truth)) for t in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9)]
    voi = [s.voi for s in scores]
    best = int(np.argmin(voi))
    assert 0 < best < 6, "neither no merge nor all merges may be best"
    assert voi[best] < 1.5
    assert voi[best] < 0.6 * voi[0]
    assert all(a.voi_split >= b.voi_split for a, b in itertools.pairwise(scores)), "higher merges more"
