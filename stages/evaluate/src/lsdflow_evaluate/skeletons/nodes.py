"""The fragment of each node of the skeletons, looked up block by block by the workers.

    nodes (z, y, x nm) --sort by block--> files of the pass --workers--> overlaps_nodes_<region>: fragment, node + 1, 1

A worker maps the list of nodes and reads the smallest box around those of its block; blocks without nodes read
nothing. The coordinator holds the skeletons and one fragment for each node, no voxel. A node outside a region's box,
where its mask is 0, or in a failed block, has no row there: it is not part of that region's skeletons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import Overlaps
from lsdflow_evaluate.scores.counting import CountedVolumes, Rows, vox3
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.scores.truth_scores import Nodes
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume, outside_of

PART = "nodes"
Int64s = NDArray[np.int64]


def looked_up(rows_of: Rows, starts: Int64s, skeletons: Skeletons, region: str) -> Nodes | None:
    """The skeletons inside a region, and the fragment of each of their nodes; None if no edge is inside.

    rows_of: the rows of the finished look-up; starts: see `nodes_by_block`.

    BadData for a lost or damaged block.
    """
    fragments = np.zeros(len(skeletons.neurons), np.uint64)
    inside = np.zeros(len(skeletons.neurons), np.bool_)
    for number in np.flatnonzero(np.diff(starts)).tolist():
        rows = rows_of(collection_of(region), number)
        place = rows.truth.astype(np.int64) - 1
        fragments[place], inside[place] = rows.fragment, True
    kept = skeletons.only(inside)
    return (kept, fragments[inside]) if len(kept.edges) else None


def collection_of(region: str) -> str:
    """The name of the rows of a region's nodes, beside those of its voxels."""
    return f"nodes_{region}"


def voxels_of(positions_nm: NDArray[np.float64], grid: Geometry) -> Int64s:
    """The voxel int64 (n, 3) of the grid of each position (n, 3)."""
    voxels = np.floor((positions_nm - np.array(grid.offset_nm)) / np.array(grid.voxel_size_nm))
    return np.asarray(voxels, np.int64)


def nodes_by_block(voxels: Int64s, plan: BlockPlan) -> dict[str, Int64s]:
    """Nodes inside the plan by ascending block: `node` (m,), `voxel` (m, 3), and where each block's begin, `starts`."""
    index = (voxels - np.array(plan.total.begin_vox)) // np.array(plan.write_shape_vox)
    end = np.array(plan.total.end_vox)
    inside = ((voxels >= np.array(plan.total.begin_vox)) & (voxels < end)).all(axis=1)
    node = np.flatnonzero(inside)
    block = np.ravel_multi_index(tuple(index[node].T), plan.grid_shape) if len(node) else np.zeros(0, np.int64)
    order = np.argsort(block, kind="stable")
    starts = np.searchsorted(block[order], np.arange(len(plan) + 1))
    return {"node": node[order], "voxel": voxels[node[order]], "starts": starts.astype(np.int64)}


@contextmanager
def lookup_blocks(volumes: CountedVolumes, node: Int64s, voxel: Int64s, starts: Int64s) -> Iterator[BlockFunction]:
    """The block function of the look-up; the arrays: see `nodes_by_block`."""

    def look_up(block: Block) -> BlockOutput:
        """The fragments at the skeleton nodes in one block."""
        own = slice(int(starts[block.number]), int(starts[block.number + 1]))
        if own.start == own.stop:
            return BlockOutput(facts={"nodes": 0})
        rows = _rows_of(volumes, np.asarray(node[own]), np.asarray(voxel[own]))
        return BlockOutput(overlaps=rows, facts={"nodes": own.stop - own.start})

    yield look_up


def _rows_of(volumes: CountedVolumes, nodes: Int64s, voxels: Int64s) -> Mapping[str, Overlaps]:
    around = Box.from_bounds(vox3(voxels.min(axis=0)), vox3(voxels.max(axis=0) + 1))
    fragments, known = labels_in(volumes.fragments, around, voxels), outside_of(volumes.truth.holes, around)
    found = {}
    for name, region in volumes.regions.items():
        begin, end = np.array(region.box.begin_vox), np.array(region.box.end_vox)
        inside = ((voxels >= begin) & (voxels < end)).all(axis=1)
        if region.mask is not None:
            inside &= labels_in(region.mask, around, voxels) != 0
        if known is not None:
            inside &= known[tuple((voxels - np.array(around.begin_vox)).T)]
        named = (nodes[inside] + 1).astype(np.uint64)
        found[collection_of(name)] = Overlaps(fragments[inside], named, np.ones(len(named), np.uint64))
    return found


def labels_in(volume: Volume, box: Box, voxels: Int64s) -> NDArray[np.uint64]:
    """The values of the voxels (n, 3), all inside `box`; 0 outside the volume."""
    z, y, x = (voxels - np.array(box.begin_vox)).T
    return np.asarray(volume.read(box, outside="zero")[z, y, x], np.uint64)
