"""Inputs of the comparisons: from real labels if they are beside the checkout, else from Voronoi cells.

Three crops of affinities, since the time of fragments and edges depends on them: noisy (affs.npy), clean/affs.npy
without the noise, and network/affs.npy as a trained network predicted them, if the user names such an array.

labels.npy      u64   (n, n, n)
affs.npy        u8    (3, n, n, n)   from the labels: smoothed, with noise as a network makes it
far_affs.npy    u8    (9, n, n, n)   the same, and affinities to the voxels of FAR
fragments.npy   u64   (n, n, n)      by lsdflow
graph.npz       u, v, score, nodes   a random graph with scattered ids: 5 edges per node
work.json       blocks, finished     numbers of blocks that do nothing
lut.npz         fragments, segments  a table with an entry for each node of the graph; ids.npy is a block of such ids
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.testing import voronoi_labels
from lsdflow_watershed.fragments import FragmentRules, extract_fragments

EDGES_PER_NODE = 5
FAR = ((-4, 0, 0), (0, -4, 0), (0, 0, -4), (-8, 0, 0), (0, -8, 0), (0, 0, -8))
REAL = Path(__file__).resolve().parents[2] / "shared/data/fib25/trvol-250-2.zarr/volumes/labels/neuron_ids"


def make_volume(folder: Path, edge_vox: int) -> str:
    """Labels, affinities and fragments; says where the labels are from."""
    folder.mkdir(parents=True, exist_ok=True)
    real = REAL.is_dir() and edge_vox <= 250
    labels = _real_labels(edge_vox) if real else voronoi_labels((edge_vox,) * 3, (edge_vox // 16) ** 3, seed=0)
    far_affs = truth_affinities(labels, 1.0, (*AFFINITY_NEIGHBORHOOD, *FAR))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "far_affs.npy", far_affs)
    make_crop(folder, np.ascontiguousarray(far_affs[:3]))
    make_crop(folder / "clean", truth_affinities(labels, 0.0))
    return "FIB-25 labels" if real else "Voronoi cells"


def make_network_crop(folder: Path, affinities: Path, edge_vox: int) -> None:
    """network/: the middle of an array volumes/affs (3, z, y, x), `edge_vox` along each axis or as far as it goes."""
    stored: Any = zarr.open(str(affinities), mode="r")
    middle = tuple(slice(max(0, (n - edge_vox) // 2), min(n, (n + edge_vox) // 2)) for n in stored.shape[1:])
    make_crop(folder / "network", np.asarray(stored[(slice(0, 3), *middle)]))


def make_crop(folder: Path, affs: NDArray[np.uint8]) -> None:
    """affs.npy, and the fragments made from it."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "affs.npy", affs)
    np.save(folder / "fragments.npy", extract_fragments(affs, None, FragmentRules()).astype(np.uint64))


def make_graph(folder: Path, nodes: int) -> None:
    """A random graph of mostly short-range edges with ids scattered over 64 bits, and a block of its ids."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    ids = np.unique(generator.integers(1, 2**62, nodes, dtype=np.uint64))
    edges = EDGES_PER_NODE * len(ids)
    u = generator.integers(0, len(ids) - 2000, edges)
    pairs = np.unique(u * len(ids) + u + generator.integers(1, 2000, edges))
    generator.shuffle(pairs)
    u, v = np.divmod(pairs, len(ids))
    score = generator.random(len(pairs), dtype=np.float32)
    np.savez(folder / "graph.npz", nodes=ids, u=ids[u], v=ids[v], score=score)
    np.savez(folder / "lut.npz", fragments=ids, segments=ids[generator.integers(0, len(ids), len(ids))])


def make_block(folder: Path, edge_vox: int) -> None:
    """ids.npy: the fragments of the volume under ids of the lookup table, as a block of a large volume has them."""
    fragments = np.load(folder / "fragments.npy")
    ids = np.load(folder / "lut.npz")["fragments"]
    block = np.zeros((edge_vox,) * 3, np.uint64)
    tiles = np.tile(fragments, (-(-edge_vox // fragments.shape[0]),) * 3)[:edge_vox, :edge_vox, :edge_vox]
    inside = tiles > 0
    block[inside] = ids[(tiles[inside] * np.uint64(7919)) % np.uint64(len(ids))]
    np.save(folder / "ids.npy", block)


def make_work(folder: Path, blocks: int, finished: int) -> None:
    """work.json: how many tiny blocks are done, and how many are finished when a run resumes."""
    (folder / "work.json").write_text(json.dumps({"blocks": blocks, "finished": finished}))


def truth_affinities(
    labels: NDArray[np.uint64], noise: float, neighborhood: Sequence[Vox3] = AFFINITY_NEIGHBORHOOD
) -> NDArray[np.uint8]:
    """Truth with its boundary grown by one voxel, smoothed, with shared, own and white noise; seed 0."""
    generator = np.random.default_rng(0)
    cell = np.ones(labels.shape, bool)
    for axis in range(3):
        face = np.diff(labels, axis=axis) != 0
        for before in (1, 0):
            cell &= ~np.pad(face, [(before, 1 - before) if axis == a else (0, 0) for a in range(3)])
    inner = np.where(cell, labels, 0)
    shared = gaussian_filter(generator.standard_normal(labels.shape).astype(np.float32), 3)
    channels = []
    for z, y, x in neighborhood:
        clean = ((inner == np.roll(inner, (-z, -y, -x), (0, 1, 2))) & cell).astype(np.float32)
        own = gaussian_filter(generator.standard_normal(labels.shape).astype(np.float32), 3)
        values = gaussian_filter(clean, 1) + noise * (0.15 * shared / shared.std() + 0.1 * own / own.std())
        values += noise * 0.1 * generator.standard_normal(labels.shape).astype(np.float32)
        channels.append((np.clip(values, 0, 1) * 255).astype(np.uint8))
    return np.stack(channels)


def _real_labels(edge_vox: int) -> NDArray[np.uint64]:
    volume: Any = zarr.open(str(REAL), mode="r")
    return np.asarray(volume[:edge_vox, :edge_vox, :edge_vox]).astype(np.uint64)
