"""How much the answer depends on the size of blocks: one shot, published blocks, seamless blocks, on one volume.

    .venv/blocks/bin/python benchmarks/block_invariance.py [--volume FIB25.zarr] [--edges 64 84 128] [--contexts 16 32]
        [--size 250] [--affinities AFFS.zarr/volumes/affs] [--modes seamless distance blocks]

Data: real labels. Affinities are made from them (boundary of one voxel, smoothed, with shared, own and white noise), or
are given. Everything is computed by the functions that the stages call, in one process; thresholds 0, 0.02 to 1. Rows:

    fragments    number, and relative to one shot of the same mode
    same id      share of voxels with the id of one shot (seamless; distance: the same with boundary = "distance")
    best VOI     smallest VOI against the truth (split + merge in bits) over all thresholds, and its threshold
    VOI to one   VOI between this segmentation and that of one shot, both at the best threshold of one shot
"""

# ruff: noqa: E402  (threads are limited before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from data import truth_affinities

import lsdflow
from lsdflow_agglomerate.block_edges import FragmentNaming, edges_of_block
from lsdflow_agglomerate.face_graph import add_faces
from lsdflow_agglomerate.faces import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.graph_agglomeration import score_graph
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagEdges
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_segment.components import ThresholdSweep
from lsdflow_watershed.block_fragments import BlockPlace, BlockRules, fragments_of_block, seamless_fragments_of_block
from lsdflow_watershed.config import Boundary
from lsdflow_watershed.fragments import FragmentRules

SHARED = Path(__file__).resolve().parents[2] / "shared/data/fib25/trvol-250-2.zarr"
DATASET = "volumes/labels/neuron_ids"
THRESHOLDS = [round(0.02 * i, 2) for i in range(51)]
MERGE_FUNCTION = "hist_quant_75"

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint64]


@dataclass
class Row:
    """One way to cut the volume: its fragments and edges, and the score of every threshold."""

    mode: str
    edge_vox: int
    context_vox: int
    fragments: Ids
    edges: RagEdges
    ids: Ids
    voi: list[float]
    seconds: float

    @property
    def best(self) -> int:
        """Number of the best threshold."""
        return int(np.argmin(self.voi))

    def segmentation(self, threshold: int) -> Ids:
        """Segments (z, y, x)."""
        return lsdflow.segment(self.fragments, self.edges, THRESHOLDS[threshold])


def blocks_graph(affs: Bytes, edge_vox: int, context_vox: int) -> tuple[Ids, RagEdges]:
    """Fragments and edges of the published mode."""
    plan, grid = plan_of(affs, edge_vox, context_vox)
    rules = BlockRules(FragmentRules(), math.prod(plan.write_shape_vox))
    fragments = np.zeros(affs.shape[1:], np.uint64)
    for block in plan.blocks():
        read = block.read.intersect(plan.total)
        place = BlockPlace(block.number, block.write, read)
        fragments[block.write.slices()] = fragments_of_block(cut(affs, read), None, place, rules, grid)[0]
    naming = FragmentNaming(plan.total, plan.write_shape_vox, rules.voxels_per_block)
    parts = []
    for block in plan.blocks():
        read = block.write.grow((max(1, context_vox),) * 3).intersect(plan.total)
        boxes = (block.write, read)
        parts.append(edges_of_block(cut(affs, read), fragments[read.slices()], boxes, naming, (MERGE_FUNCTION,)))
    return fragments, RagEdges.concatenate([part[MERGE_FUNCTION] for part in parts])


def seamless_graph(affs: Bytes, edge_vox: int, context_vox: int, boundary: Boundary) -> tuple[Ids, RagEdges]:
    """Fragments and edges of the seamless mode."""
    plan, grid = plan_of(affs, edge_vox, context_vox)
    rules = BlockRules(FragmentRules(boundary=boundary), 1)
    fragments = np.zeros(affs.shape[1:], np.uint64)
    for block in plan.blocks():
        read = block.read.grow((0, 0, 0), (1, 1, 1)).intersect(plan.total)
        place = BlockPlace(block.number, block.write, read)
        fragments[block.write.slices()] = seamless_fragments_of_block(cut(affs, read), None, place, rules, grid)[0]
    parts = []
    for block in plan.blocks():
        read = box_with_lower_neighbours(block.write, plan.total)
        parts.append(count_faces(cut(affs, block.write), fragments[read.slices()], block.write, read))
    return fragments, score_graph(add_faces(parts), MERGE_FUNCTION)


def plan_of(affs: Bytes, edge_vox: int, context_vox: int) -> tuple[BlockPlan, Geometry]:
    z, y, x = affs.shape[1:]
    grid = Geometry((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (z, y, x))
    return BlockPlan(grid.box, (edge_vox,) * 3, (context_vox,) * 3), grid


def cut(affs: Bytes, box: Box) -> Bytes:
    return affs[(slice(None), *box.slices())]


def measured(mode: str, affs: Bytes, truth: Ids, edge_vox: int, context_vox: int) -> Row:
    """Fragments, edges, the segmentation of every threshold and its VOI."""
    started = time.perf_counter()
    if mode == "blocks":
        fragments, edges = blocks_graph(affs, edge_vox, context_vox)
    else:
        boundary: Boundary = "distance" if mode == "distance" else "affinity"
        fragments, edges = seamless_graph(affs, edge_vox, context_vox, boundary)
    seconds = time.perf_counter() - started
    ids = np.unique(fragments)
    ids = ids[ids > 0]
    sweep = ThresholdSweep(ids, THRESHOLDS)
    sweep.add(edges.u, edges.v, edges.merge_score)
    table = contingency(fragments, truth)
    voi = [score(table.relabel(ids, ids[roots])).voi for roots in sweep.roots()]
    return Row(mode, edge_vox, context_vox, fragments, edges, ids, voi, seconds)


def reported(row: Row, one: Row) -> str:
    """A line of the table."""
    same = f"{(row.fragments == one.fragments).mean():.1%}" if row.mode != "blocks" else "-"
    between = lsdflow.compare(row.segmentation(one.best), one.segmentation(one.best)).voi
    ratio = len(row.ids) / len(one.ids) - 1
    cells = [
        f"{row.mode} {row.edge_vox}/{row.context_vox}" if row is not one else f"{row.mode} one shot",
        f"{len(row.ids):,} ({ratio:+.1%})",
        same,
        f"{row.voi[row.best]:.3f} @ {THRESHOLDS[row.best]:.2f} ({row.voi[row.best] - one.voi[one.best]:+.3f})",
        f"{between:.3f}",
        f"{row.seconds:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volume", type=Path, default=SHARED, help="zarr container with labels")
    parser.add_argument("--dataset", default=DATASET)
    parser.add_argument("--affinities", type=Path, help="a zarr array (3, z, y, x) u8 on the voxels of the labels")
    parser.add_argument("--edges", type=int, nargs="+", default=[64, 84, 128])
    parser.add_argument("--contexts", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--size", type=int, default=250, help="edge of the cube that is cut out")
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument(
        "--modes", nargs="+", default=["seamless", "blocks"], choices=["seamless", "distance", "blocks"]
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    inner = (slice(0, options.size),) * 3
    truth = np.asarray(zarr.open_array(options.volume / options.dataset, mode="r")[inner]).astype(np.uint64)
    if options.affinities:
        affs = np.asarray(zarr.open_array(options.affinities, mode="r")[(slice(0, 3), *inner)]).astype(np.uint8)
    else:
        affs = truth_affinities(truth, options.noise)
    print("| mode, block edge / context | fragments | same id | best VOI @ threshold | VOI to one shot | s |")
    print("|---|---|---|---|---|---|", flush=True)
    for mode in options.modes:
        one = measured(mode, affs, truth, max(truth.shape), 0)
        print(reported(one, one), flush=True)
        for edge_vox in options.edges:
            for context_vox in options.contexts:
                print(reported(measured(mode, affs, truth, edge_vox, context_vox), one), flush=True)


if __name__ == "__main__":
    main()
