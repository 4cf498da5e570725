"""lsdflow's sides of the comparisons; serving.py runs them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from our_blocks import blocks_done, blocks_done_in_memory, resumed
from our_network import network, network_bf16
from serving import Work, serve

from lsdflow_agglomerate.block_edges import FragmentNaming
from lsdflow_contract.arrays import AFFS, ArraySpec
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import FACES, RagEdges, RagNodes
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.rag_store import FilesRagStore

GRID_NM = (8.0, 8.0, 8.0)


def seamless_fragments(folder: Path) -> Work:
    """Affinities -> fragments, as the stage makes them by default."""
    from lsdflow_watershed.fragments import FragmentRules, seeded_fragments

    affs = np.load(folder / "affs.npy")
    seeded_fragments(affs[:, :32, :32, :32], None, FragmentRules())
    return lambda: seeded_fragments(affs, None, FragmentRules())[0]


def fragments(folder: Path) -> Work:
    """Affinities -> fragments by the published rule (id_mode = "blocks")."""
    from lsdflow_watershed.fragments import FragmentRules, extract_fragments

    affs = np.load(folder / "affs.npy")
    extract_fragments(affs[:, :32, :32, :32], None, FragmentRules())
    return lambda: extract_fragments(affs, None, FragmentRules())


def fragments_on_disk(folder: Path) -> Work:
    """The same with reading and writing, as the stage does a block."""
    from lsdflow_watershed.fragments import FragmentRules, extract_fragments

    affs = np.load(folder / "affs.npy")
    source, target = _array(folder / "io", AFFS, affs), _array(folder / "io", _ids("fragments"), affs[0])
    extract_fragments(affs[:, :32, :32, :32], None, FragmentRules())

    def work() -> Any:
        made = extract_fragments(source.read(source.box), None, FragmentRules()).astype(np.uint64)
        target.write(target.box, made)
        return target.read(target.box)

    return work


def mutex_fragments(folder: Path) -> Work:
    """Mutex watershed of near and far affinities, of the far ones every fourth voxel in each axis."""
    from data import FAR

    from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
    from lsdflow_watershed.mutex import mutex_channels, mutex_watershed

    affs = np.load(folder / "far_affs.npy")
    channels = mutex_channels((*AFFINITY_NEIGHBORHOOD, *FAR), (), [(4, 4, 4)])
    mutex_watershed(affs[:, :32, :32, :32], channels)
    return lambda: mutex_watershed(affs, channels)


def scored_edges(folder: Path) -> Work:
    """Fragments + affinities -> scored edges, sorted by (u, v)."""
    from lsdflow_agglomerate.block_edges import edges_of_block

    affs, ids = np.load(folder / "affs.npy"), np.load(folder / "fragments.npy")
    box = Box((0, 0, 0), ids.shape)
    naming = FragmentNaming(box, box.shape_vox, ids.size)

    def work() -> Any:
        edges = edges_of_block(affs, ids, (box, box), naming, ("hist_quant_75",))["hist_quant_75"]
        return np.stack([edges.u.astype(np.float64), edges.v, edges.merge_score])

    return work


def scored_faces(folder: Path) -> Work:
    """The same in seamless mode: faces counted, then agglomeration on the graph."""
    from lsdflow_agglomerate.face_graph import add_faces
    from lsdflow_agglomerate.faces import count_faces
    from lsdflow_agglomerate.graph_agglomeration import score_graph

    affs, ids = np.load(folder / "affs.npy"), np.load(folder / "fragments.npy")
    box = Box((0, 0, 0), ids.shape)

    def work() -> Any:
        edges = score_graph(add_faces([count_faces(affs, ids, box, box)]), "hist_quant_75")
        return np.stack([edges.u.astype(np.float64), edges.v, edges.merge_score])

    work()
    return work


def faces_and_edges_stored(folder: Path) -> Work:
    """Faces of blocks into the store, read again and added up, scored, and the edges into the store and back."""
    from lsdflow_agglomerate.face_graph import add_faces
    from lsdflow_agglomerate.faces import box_with_lower_neighbours, count_faces
    from lsdflow_agglomerate.graph_agglomeration import score_graph

    affs, ids = np.load(folder / "affs.npy"), np.load(folder / "fragments.npy")
    plan = BlockPlan(Box((0, 0, 0), ids.shape), (64, 64, 64))

    def work() -> Any:
        shutil.rmtree(folder / "edges", ignore_errors=True)
        store = FilesRagStore(folder / "edges")
        for block in plan.blocks():
            read = box_with_lower_neighbours(block.write, plan.total)
            cut = affs[(slice(None), *block.write.slices())]
            store.write_edges("key", FACES, block.number, count_faces(cut, ids[read.slices()], block.write, read))
        faces = (store.read_edges("key", FACES, number) for number in range(len(plan)))
        store.write_edges("key", "hist_quant_75", 0, score_graph(add_faces(faces), "hist_quant_75"))
        edges = store.read_edges("key", "hist_quant_75", 0)
        return np.stack([edges.u.astype(np.float64), edges.v, edges.merge_score])

    work()
    return work


def components(folder: Path) -> Work:
    """One threshold -> the segment of every fragment."""
    return _components(folder, (0.1,))


def components_of_20(folder: Path) -> Work:
    """Twenty thresholds at once; the last one's segments are compared."""
    return _components(folder, tuple(np.linspace(0.005, 0.1, 20)))


def _components(folder: Path, thresholds: tuple[float, ...]) -> Work:
    from lsdflow_segment.components import ThresholdSweep

    graph = np.load(folder / "graph.npz")
    nodes, u, v, score = (graph[name] for name in ("nodes", "u", "v", "score"))

    def work() -> Any:
        sweep = ThresholdSweep(nodes, thresholds)
        step = 1 << 20
        for begin in range(0, len(u), step):
            batch = slice(begin, begin + step)
            sweep.add(u[batch], v[batch], score[batch])
        *_, last = sweep.roots()
        return nodes[last]

    work()
    return work


def relabelled(folder: Path) -> Work:
    """A block of fragments and a lookup table -> segments."""
    from lsdflow_segment.relabel import relabel

    ids, lut = np.load(folder / "ids.npy"), np.load(folder / "lut.npz")
    table = (lut["fragments"], lut["segments"])
    relabel(ids[:2], *table)
    return lambda: relabel(ids, *table)


def relabelled_on_disk(folder: Path) -> Work:
    """The same with reading and writing, as the stage does a block."""
    from lsdflow_segment.relabel import relabel

    ids, lut = np.load(folder / "ids.npy"), np.load(folder / "lut.npz")
    table = (lut["fragments"], lut["segments"])
    source, target = _array(folder / "io", _ids("ids"), ids), _array(folder / "io", _ids("segments"), ids)

    def work() -> Any:
        target.write(target.box, relabel(source.read(source.box), *table))
        return 0

    relabel(ids[:2], *table)
    return work


def written(folder: Path) -> Work:
    """Write affinities block by block."""
    affs = np.load(folder / "affs.npy")
    target = _array(folder / "io", AFFS, affs)

    def work() -> Any:
        target.write(target.box, affs)
        return 0

    return work


def read(folder: Path) -> Work:
    """Read affinities."""
    affs = np.load(folder / "affs.npy")
    source = _array(folder / "io", AFFS, affs)
    return lambda: source.read(source.box)


def graph_stored(folder: Path) -> Work:
    """A tenth of the nodes and edges into the store, in 20 blocks, and all of them back."""
    graph = np.load(folder / "graph.npz")
    nodes, u, v, score = (graph[name][::10] for name in ("nodes", "u", "v", "score"))
    centers = np.random.default_rng(0).random((len(nodes), 3)).astype(np.float32)

    def work() -> Any:
        shutil.rmtree(folder / "store", ignore_errors=True)
        store, blocks = FilesRagStore(folder / "store"), 20
        for block in range(blocks):
            some, more = slice(block, None, blocks), slice(block, None, blocks)
            sizes = np.ones(len(nodes[some]), np.uint64)
            store.write_nodes("key", block, RagNodes(nodes[some], centers[some], sizes))
            store.write_edges("key", "mean", block, RagEdges(u[more], v[more], score[more]))
        back = [len(n.id) for n in store.iter_nodes("key")] + [len(e.u) for e in store.iter_edges("key", "mean")]
        return sum(back)

    return work


def _ids(name: str) -> ArraySpec:
    return ArraySpec(f"volumes/{name}", "uint64", 0, "labels")


def _array(path: Path, spec: ArraySpec, values: Any) -> Any:
    """An array of lsdflow as a stage makes it, in one write unit, holding `values`."""
    shape = values.shape[-3:]
    grid = Geometry(GRID_NM, (0.0, 0.0, 0.0), shape)
    output = OutputArray(path, spec, grid, grid.box, shape)
    shutil.rmtree(output.folder, ignore_errors=True)
    output.create({"key": "benchmark"})
    volume = output.open()
    volume.write(grid.box, values)
    return volume


if __name__ == "__main__":
    sides = (
        fragments,
        seamless_fragments,
        fragments_on_disk,
        mutex_fragments,
        scored_edges,
        scored_faces,
        faces_and_edges_stored,
        components,
        components_of_20,
        relabelled,
        relabelled_on_disk,
    )
    networks = (network, network_bf16)
    more = (written, read, graph_stored, blocks_done, blocks_done_in_memory, resumed)
    serve(
        {side.__name__: side for side in (*sides, *networks, *more)},
        ("numba", "numpy", "waterz", "zarr", "cc3d", "torch"),
    )
