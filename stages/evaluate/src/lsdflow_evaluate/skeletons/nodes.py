"""The fragment that each node of the skeletons lies in, looked up block by block by the workers.

    nodes (z, y, x nm) --sort by block--> files of the work --workers--> overlaps_nodes_<region>: fragment, node + 1, 1

A worker maps the list of nodes and reads the smallest box around those of its block; blocks without nodes read
nothing. The coordinator holds the skeletons and one fragment for each node, no voxel. A node outside a region's box,
where its mask is 0, or in a failed block, has no row there: it is not part of that region's skeletons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.graph import Overlaps
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import work_key
from lsdflow_evaluate.config import STAGE
from lsdflow_evaluate.scores.counting import CountedVolumes, open_counted
from lsdflow_evaluate.scores.later_works import LaterWork, leave_work
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.io.volumes import Volume, outside_of

PART = "nodes"
Int64s = NDArray[np.int64]
Nodes = tuple[Skeletons, NDArray[np.uint64]]


def nodes_task(counting: BlockTask, skeletons: Skeletons) -> BlockTask:
    """The look-up of the nodes of `skeletons` in the blocks of the counting; its files are left for the workers."""
    volumes = open_counted(counting.experiment)
    voxels = voxels_of(skeletons.positions_nm, volumes.grid)
    parameters = {"part": PART, "nodes": hash_of_array(voxels), "counting": counting.key}
    key = work_key(STAGE, parameters, dict(counting.inputs))
    arrays = nodes_by_block(voxels, counting.plan)
    return nodes_task_of(counting, leave_work(counting.experiment, key, parameters, arrays))


def nodes_task_of(counting: BlockTask, work: LaterWork) -> BlockTask:
    """The same from the files that were left."""
    return BlockTask(
        stage=STAGE,
        experiment=counting.experiment,
        key=work.key,
        config=work.parameters,
        inputs=counting.inputs,
        plan=counting.plan,
        outputs={},
        open=partial(_opened, counting, work),
    )


def looked_up(task: BlockTask, work: LaterWork, skeletons: Skeletons, region: str) -> Nodes | None:
    """The skeletons inside a region, and the fragment of each of their nodes; none if no edge lies inside.

    BadData for a lost or damaged block.
    """
    fragments = np.zeros(len(skeletons.neurons), np.uint64)
    inside = np.zeros(len(skeletons.neurons), np.bool_)
    for number in np.flatnonzero(np.diff(work.array("starts"))).tolist():
        rows = task.rag_store.read_overlaps(task.key, collection_of(region), number)
        place = rows.truth.astype(np.int64) - 1
        fragments[place], inside[place] = rows.fragment, True
    kept = skeletons.only(inside)
    return (kept, fragments[inside]) if len(kept.edges) else None


def collection_of(region: str) -> str:
    """The name of the rows of a region's nodes, beside those of its voxels."""
    return f"nodes_{region}"


def voxels_of(positions_nm: NDArray[np.float64], grid: Geometry) -> Int64s:
    """The voxel int64 (n, 3) of the grid that each position (n, 3) lies in."""
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
def _opened(counting: BlockTask, work: LaterWork) -> Iterator[BlockFunction]:
    volumes = open_counted(counting.experiment)
    node, voxel, starts = (work.array(name) for name in ("node", "voxel", "starts"))

    def look_up(block: Block) -> BlockOutput:
        own = slice(int(starts[block.number]), int(starts[block.number + 1]))
        if own.start == own.stop:
            return BlockOutput(facts={"nodes": 0})
        rows = _rows_of(volumes, np.asarray(node[own]), np.asarray(voxel[own]))
        return BlockOutput(overlaps=rows, facts={"nodes": own.stop - own.start})

    yield look_up


def _rows_of(volumes: CountedVolumes, nodes: Int64s, voxels: Int64s) -> Mapping[str, Overlaps]:
    around = Box.from_bounds(_vox3(voxels.min(axis=0)), _vox3(voxels.max(axis=0) + 1))
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


def _vox3(values: NDArray[Any]) -> Vox3:
    z, y, x = (int(v) for v in values)
    return z, y, x
