"""The peers' sides of the comparisons, each as its users call it; serving.py runs them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from daisy_blocks import daisy_marked, daisy_resumed, daisy_tracked_in_memory
from peer_edges import waterz_edges, waterz_edges_of_blocks_stored
from serving import Work, serve


def lsd_chain(folder: Path) -> Work:
    """The published fragments: scipy distance transform and maximum filter, mahotas labels and watershed."""
    import mahotas
    from scipy.ndimage import distance_transform_edt, maximum_filter

    affs = np.load(folder / "affs.npy")

    def work() -> Any:
        mask = np.mean(affs, axis=0) > 0.5 * 255
        distance = distance_transform_edt(mask)
        seeds, _ = mahotas.label(maximum_filter(distance, 10) == distance)
        return mahotas.cwatershed(distance.max() - distance, seeds)

    return work


def lsd_chain_on_disk(folder: Path) -> Work:
    """The same, from float32 affinities on disk to u64 fragments on disk, with the defaults of zarr-python."""
    import mahotas
    from scipy.ndimage import distance_transform_edt, maximum_filter

    affs = np.load(folder / "affs.npy")
    source = _zarr(folder / "peer_affs.zarr", affs.astype(np.float32) / 255)
    target = _zarr(folder / "peer_fragments.zarr", np.zeros(affs.shape[1:], np.uint64))

    def work() -> Any:
        mask = np.mean(source[:], axis=0) > 0.5
        distance = distance_transform_edt(mask)
        seeds, _ = mahotas.label(maximum_filter(distance, 10) == distance)
        target[:] = mahotas.cwatershed(distance.max() - distance, seeds).astype(np.uint64)
        return target[:]

    return work


def skimage_watershed(folder: Path) -> Work:
    """The same steps with scikit-image's watershed."""
    from scipy.ndimage import distance_transform_edt, label, maximum_filter
    from skimage.segmentation import watershed

    affs = np.load(folder / "affs.npy")

    def work() -> Any:
        mask = np.mean(affs, axis=0) > 0.5 * 255
        distance = distance_transform_edt(mask)
        seeds, _ = label(maximum_filter(distance, 10) == distance)
        return watershed(-distance, seeds)

    return work


def waterz_fragments(folder: Path) -> Work:
    """waterz' own watershed of the affinities."""
    import waterz

    affs = np.load(folder / "affs.npy").astype(np.float32) / 255
    return lambda: next(waterz.agglomerate(affs, [0]))


def mutex_watershed(folder: Path) -> Work:
    """mwatershed on the three nearest neighbours."""
    import mwatershed

    affs = np.load(folder / "affs.npy").astype(np.float64) / 255 - 0.5
    offsets = [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    return lambda: mwatershed.agglom(affs, offsets)


def mutex_watershed_of_far(folder: Path) -> Work:
    """mwatershed on near and far affinities, biased and with strides as its users set them.

    Grey levels are moved apart by less than one, in the order in which lsdflow takes equal ones: mwatershed takes them
    in any order (its users add noise), and only so can the partitions be compared.
    """
    import mwatershed

    near, far = [[-1, 0, 0], [0, -1, 0], [0, 0, -1]], [[-4, 0, 0], [0, -4, 0], [0, 0, -4]]
    offsets = [*near, *far, *[[2 * step for step in offset] for offset in far]]
    affs = np.load(folder / "far_affs.npy")
    bias = np.array([0.0] * 3 + [-1.0] * 6)[:, None, None, None]
    weights = np.round(affs / 255 + bias, 9)
    weights += np.sign(weights) * (0.003 * np.arange(weights.size, 0, -1) / weights.size).reshape(weights.shape)
    strides = [[1, 1, 1]] * 3 + [[4, 4, 4]] * 6
    return lambda: mwatershed.agglom(weights, offsets, strides=strides)


def scipy_components(folder: Path) -> Work:
    """scipy's connected components for one threshold, with the ids made dense first."""
    return _scipy_components(folder, (0.1,))


def scipy_components_20_times(folder: Path) -> Work:
    """The same for 20 thresholds, one after another."""
    return _scipy_components(folder, tuple(np.linspace(0.005, 0.1, 20)))


def _scipy_components(folder: Path, thresholds: tuple[float, ...]) -> Work:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = np.load(folder / "graph.npz")
    nodes, u, v, score = (graph[name] for name in ("nodes", "u", "v", "score"))

    def work() -> Any:
        found = np.zeros(len(nodes), np.int32)
        for threshold in thresholds:
            kept = score <= np.float32(threshold)
            a, b = np.searchsorted(nodes, u[kept]), np.searchsorted(nodes, v[kept])
            matrix = coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(len(nodes),) * 2)
            _, found = connected_components(matrix, directed=False)
        return found + 1

    return work


def networkx_components(folder: Path) -> Work:
    """networkx' connected components for one threshold."""
    import networkx

    graph = np.load(folder / "graph.npz")
    nodes, u, v, score = (graph[name] for name in ("nodes", "u", "v", "score"))

    def work() -> Any:
        made = networkx.Graph()
        made.add_nodes_from(nodes.tolist())
        kept = score <= np.float32(0.1)
        made.add_edges_from(zip(u[kept].tolist(), v[kept].tolist(), strict=True))
        found = {node: n for n, part in enumerate(networkx.connected_components(made), 1) for node in part}
        return [found[node] for node in nodes.tolist()]

    return work


def fastremap_remap(folder: Path) -> Work:
    """fastremap with a dictionary of the ids of this block, made before."""
    import fastremap

    ids, lut = np.load(folder / "ids.npy"), np.load(folder / "lut.npz")
    here = np.isin(lut["fragments"], ids)
    table = dict(zip(lut["fragments"][here].tolist(), lut["segments"][here].tolist(), strict=True)) | {0: 0}
    return lambda: fastremap.remap(ids, table, preserve_missing_labels=False)


def map_per_block(folder: Path) -> Work:
    """numpy: unique ids of the block, a map made for it, expanded through the inverse."""
    ids, lut = np.load(folder / "ids.npy"), np.load(folder / "lut.npz")

    def work() -> Any:
        found, inverse = np.unique(ids, return_inverse=True)
        table = dict(zip(lut["fragments"].tolist(), lut["segments"].tolist(), strict=True)) | {0: 0}
        return np.array([table[i] for i in found.tolist()], np.uint64)[inverse].reshape(ids.shape)

    return work


def zarr_written(folder: Path) -> Work:
    """Affinities written by zarr-python in chunks of 64, with its defaults."""
    affs = np.load(folder / "affs.npy")
    target = _zarr(folder / "peer_io.zarr", affs)

    def work() -> Any:
        target[:] = affs
        return 0

    return work


def zarr_shards_written(folder: Path) -> Work:
    """Affinities written by zarr-python in one shard of chunks of 64, with its defaults."""
    affs = np.load(folder / "affs.npy")
    target = _zarr(folder / "peer_shard.zarr", affs, sharded=True)

    def work() -> Any:
        target[:] = affs
        return 0

    return work


def zarr_read(folder: Path) -> Work:
    """Affinities read by zarr-python from chunks of 64."""
    source = _zarr(folder / "peer_io.zarr", np.load(folder / "affs.npy"))
    return lambda: source[:]


def zarr_shards_read(folder: Path) -> Work:
    """Affinities read by zarr-python from one shard."""
    source = _zarr(folder / "peer_shard.zarr", np.load(folder / "affs.npy"), sharded=True)
    return lambda: source[:]


def sqlite_graph(folder: Path) -> Work:
    """The same into SQLite with keys, as graph libraries of the field do, and all of it back."""
    graph = np.load(folder / "graph.npz")
    nodes, u, v = (graph[name][::10].astype(np.int64) for name in ("nodes", "u", "v"))
    score = graph["score"][::10]
    centers = np.random.default_rng(0).random((len(nodes), 3))

    def work() -> Any:
        (folder / "graph.sqlite").unlink(missing_ok=True)
        database = sqlite3.connect(folder / "graph.sqlite")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE nodes (id INTEGER PRIMARY KEY, z REAL, y REAL, x REAL)")
        database.execute("CREATE TABLE edges (u INTEGER, v INTEGER, score REAL, PRIMARY KEY (u, v))")
        for block in range(20):
            some = slice(block, None, 20)
            rows = zip(nodes[some].tolist(), *centers[some].T.tolist(), strict=True)
            database.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", rows)
            edges = zip(u[some].tolist(), v[some].tolist(), score[some].tolist(), strict=True)
            database.executemany("INSERT OR REPLACE INTO edges VALUES (?, ?, ?)", edges)
            database.commit()
        back = [len(database.execute(f"SELECT * FROM {table}").fetchall()) for table in ("nodes", "edges")]
        database.close()
        return sum(back)

    return work


def _zarr(path: Path, values: Any, *, sharded: bool = False) -> Any:
    import zarr

    shutil.rmtree(path, ignore_errors=True)
    chunks = (1,) * (values.ndim - 3) + (64,) * 3
    shards = tuple(-(-n // c) * c for n, c in zip(values.shape, chunks, strict=True)) if sharded else None
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, chunks=chunks, shards=shards)
    array[:] = values
    return array


if __name__ == "__main__":
    fragments = (
        lsd_chain,
        lsd_chain_on_disk,
        skimage_watershed,
        waterz_fragments,
        mutex_watershed,
        mutex_watershed_of_far,
    )
    edges = (waterz_edges, waterz_edges_of_blocks_stored)
    graphs = (scipy_components, scipy_components_20_times, networkx_components, sqlite_graph)
    arrays = (fastremap_remap, map_per_block, zarr_written, zarr_read, zarr_shards_written, zarr_shards_read)
    blocks = (daisy_marked, daisy_tracked_in_memory, daisy_resumed)
    modules = ("daisy", "numpy", "scipy", "mahotas", "skimage", "waterz", "mwatershed", "networkx", "fastremap", "zarr")
    serve({side.__name__: side for side in (*fragments, *edges, *graphs, *arrays, *blocks)}, modules)
