"""Super-blocks: parts of the volume whose graphs fit into memory, joined in groups of eight until one remains.

    level 1              level 2         level 3           A super-block of level 1 is made of whole blocks whose faces
    +--+--+--+--+--+     +-----+-----+-+  +-----------+    were counted; each level doubles the edges. The last has one.
    |  |  |  |  |  |     |     |     | |  |           |
    +--+--+--+--+--+ --> |     |     | |->|           |    Parts of a super-block have numbers 0 to 7: 4 if it is the
    |  |  |  |  |  |     +-----+-----+-+  |           |    upper half along z, 2 along y, 1 along x, added up.
    +--+--+--+--+--+     +-----+-----+-+  +-----------+

Some fragments of a super-block can occur outside of it. A block uses the id of a fragment only if it contains its seed,
and the id contains the position of the seed (1 + position in the target). So these are the fragments with a seed
outside, or no farther inside than the context of watershed, and those in the blocks directly above, which count the
faces of the uppermost voxels.

The graph is agglomerated in super-blocks: up, then down.

    rows of faces --level 1--> left --level 2--> left ... --last level--> every pair has its score
                                                                    |
    edges of the graph <--level 1-- settled <--level 2-- settled <--+

On the way up, every super-block does the merges that cannot depend on others, and stores the remaining graph. On the
way down, it repeats its merges, and the scores of the level above complete its own. A volume of one super-block needs
one pass. The blocks of these passes are super-blocks, so any worker can process them. Only the last pass writes edges
of the graph; the others write intermediate files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import FaceGraph, add_faces, graph_of, rows_of
from lsdflow_agglomerate.graph_agglomeration import (
    SuperBlock,
    agglomerate_super_block,
    graph_of_faces,
    graph_of_parts,
    settled,
)
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.graph import FACES, RagEdges, RagFaces, RegionFaces
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.accepted_failures import recorded_numbers, result_key
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.store.stores import FilesStore

PARTS = 8

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class SuperBlocks:
    """The levels of super-blocks over the blocks of `faces`.

    `shape_vox` of level 1: whole blocks of faces. `reach_vox`: blocks outside a super-block have no fragment whose seed
    is farther inside than that. `grid_shape_vox`: the target volume, whose voxel positions are the ids of seeds.
    """

    faces: BlockPlan
    shape_vox: Vox3
    reach_vox: Vox3
    grid_shape_vox: Vox3

    @cached_property
    def levels(self) -> int:
        """Number of levels, at least 1; the last has one super-block."""
        return 1 + (max(self.plan(1).grid_shape) - 1).bit_length()

    def plan(self, level: int) -> BlockPlan:
        """The super-blocks of a level."""
        z, y, x = (edge << (level - 1) for edge in self.shape_vox)
        return BlockPlan(self.faces.total, (z, y, x))

    def parts(self, level: int, number: int) -> dict[int, int]:
        """Numbers of the super-blocks of the level below that a super-block is made of, by part."""
        below, index = self.plan(level - 1).grid_shape, self.plan(level).block(number).index
        found = {}
        for part in range(PARTS):
            z, y, x = (2 * i + half for i, half in zip(index, (part >> 2, part >> 1 & 1, part & 1), strict=True))
            if z < below[0] and y < below[1] and x < below[2]:
                found[part] = (z * below[1] + y) * below[2] + x
        return found

    def whole(self, level: int, number: int) -> tuple[int, int]:
        """Number of the parent of a super-block in the level above, and the number of the part in it."""
        z, y, x = self.plan(level).block(number).index
        _, ny, nx = self.plan(level + 1).grid_shape
        return ((z // 2) * ny + y // 2) * nx + x // 2, (z % 2) << 2 | (y % 2) << 1 | x % 2

    def face_blocks(self, box: Box) -> list[int]:
        """Numbers of the blocks of faces that overlap a box, ascending."""
        inside = box.intersect(self.faces.total).translate(_negative(self.faces.total.begin_vox))
        if inside.is_empty:
            return []
        bounds = zip(inside.begin_vox, inside.end_vox, self.faces.write_shape_vox, strict=True)
        z, y, x = (range(begin // edge, (end - 1) // edge + 1) for begin, end, edge in bounds)
        _, ny, nx = self.faces.grid_shape
        return [(i * ny + j) * nx + k for i in z for j in y for k in x]

    def face_blocks_above(self, box: Box) -> list[int]:
        """Numbers of the blocks directly above a super-block, which count the faces of its uppermost voxels."""
        return sorted({number for layer in _layers_above(box) for number in self.face_blocks(layer)})

    def near_the_outside(self, ids: UInt64s, box: Box) -> NDArray[np.bool_]:
        """Which fragments (N,) have a seed that blocks outside of a super-block may contain."""
        _, ny, nx = self.grid_shape_vox
        place = ids - np.uint64(1)
        seed = (place // np.uint64(ny * nx), place // np.uint64(nx) % np.uint64(ny), place % np.uint64(nx))
        near = np.zeros(len(ids), bool)
        for axis, total in enumerate(zip(self.faces.total.begin_vox, self.faces.total.end_vox, strict=True)):
            begin, end, reach = box.begin_vox[axis], box.end_vox[axis], self.reach_vox[axis]
            at = seed[axis].astype(np.int64)
            if begin > total[0]:
                near |= at < begin + reach
            if end < total[1]:
                near |= at >= end - reach
        return near


def _layers_above(box: Box) -> Iterator[Box]:
    for axis in range(3):
        begin, shape = list(box.begin_vox), list(box.shape_vox)
        begin[axis], shape[axis] = box.end_vox[axis], 1
        yield Box((begin[0], begin[1], begin[2]), (shape[0], shape[1], shape[2]))


def _negative(vox: Vox3) -> Vox3:
    return -vox[0], -vox[1], -vox[2]


@dataclass(frozen=True)
class GraphWork:
    """Common data of all passes: the pass that counted the faces, the super-blocks, and the settings of the stage."""

    faces: BlockTask
    super_blocks: SuperBlocks
    merge_functions: tuple[str, ...]
    config: dict[str, Any]

    def passes(self) -> list[BlockTask]:
        """The passes in their order; the last one writes the edges of the graph."""
        up: list[BlockTask] = []
        for level in range(1, self.super_blocks.levels):
            up.append(self._pass("left", level, up[-1:], partial(_merging, self, level, tuple(up))))
        down: list[BlockTask] = []
        for level in range(self.super_blocks.levels, 0, -1):
            open_blocks = partial(_settling, self, level, tuple(up), tuple(down))
            down.append(self._pass("settled", level, [*up[-1:], *down[-1:]], open_blocks))
        return [*up, *down]

    def _pass(self, part: str, level: int, before: list[BlockTask], open_blocks: Any) -> BlockTask:
        last = part == "settled" and level == 1
        plan = self.super_blocks.plan(level)
        config = self.config if last else {**self.config, "part": part, "level": level}
        inputs = {
            **self.faces.inputs,
            FACES: result_key(self.faces),
            **{f"pass {n}": task.key for n, task in enumerate(before)},
        }
        compute, layout = self.faces.compute, self.faces.layout
        return replace(
            self.faces,
            # Intermediate rows are in files; a single block is processed by the coordinator.
            store=self.faces.store if last else FilesStore(layout.store),
            compute=compute.model_copy(update={"runner": "serial"}) if len(plan) == 1 else compute,
            key=work_key(self.faces.stage, config, inputs),
            config=config,
            inputs=inputs,
            plan=plan,
            open=open_blocks,
            label="edges" if last else f"{part}_{level}",
            may_have_holes=False,
        )

    def graphs(self, level: int, number: int, up: tuple[BlockTask, ...]) -> Iterator[tuple[str, FaceGraph]]:
        """The graph of a super-block for each merge function, from rows of faces or the graphs of its parts."""
        if level == 1:
            box = self.super_blocks.plan(1).block(number).write
            whole = add_faces(_stored_faces(self.faces, self.super_blocks.face_blocks(box)))
        for name in self.merge_functions:
            if level == 1:
                yield name, graph_of_faces(whole, name)
            else:
                parts = self.super_blocks.parts(level, number).values()
                yield name, graph_of_parts([_left_of(up[level - 2], name, part) for part in parts], name)

    def waiting(self, graph: FaceGraph, block: Block) -> UInt64s:
        """Fragments of a super-block that may occur in rows outside of it."""
        ids = np.unique(np.concatenate([graph.u, graph.v]))
        near = ids[self.super_blocks.near_the_outside(ids, block.write)]
        above = _stored_faces(self.faces, self.super_blocks.face_blocks_above(block.write))
        named = [np.intersect1d(ids, ends) for rows in above for ends in (rows.u, rows.v)]
        return np.unique(np.concatenate([near, *named]))

    def merged(self, graph: FaceGraph, block: Block, merge_function: str) -> SuperBlock:
        """A super-block after its merges."""
        return agglomerate_super_block(graph, self.waiting(graph, block), merge_function)


@contextmanager
def _merging(work: GraphWork, level: int, up: tuple[BlockTask, ...]) -> Iterator[BlockFunction]:
    """The way up: merge, and store the remaining graph."""

    def merge_block(block: Block) -> BlockOutput:
        """Merge one super-block; returns the rows that remain (RegionFaces), for each merge function."""
        edges: dict[str, RagEdges] = {}
        for name, graph in work.graphs(level, block.number, up):
            edges[f"left_{name}"] = rows_of(work.merged(graph, block, name).left)
        return BlockOutput(edges=edges, facts={name: len(rows) for name, rows in edges.items()})

    yield merge_block


@contextmanager
def _settling(
    work: GraphWork, level: int, up: tuple[BlockTask, ...], down: tuple[BlockTask, ...]
) -> Iterator[BlockFunction]:
    """The way down: store the scores of all pairs of a super-block for its parts, or at level 1 for the graph."""

    def settle_block(block: Block) -> BlockOutput:
        """Score all pairs of one super-block; returns rows u, v (u64) and scores (f32), for each merge function."""
        edges: dict[str, RagEdges] = {}
        for name, graph in work.graphs(level, block.number, up):
            part = work.merged(graph, block, name)
            if down:
                whole, number = work.super_blocks.whole(level, block.number)
                above = down[-1].rag_store.read_edges(down[-1].key, _settled_name(name, number), whole)
                scores = settled(graph, part, above)
            else:
                scores = RagEdges(graph.u, graph.v, part.score)
            if level == 1:
                edges[name] = scores
            else:
                parts = work.super_blocks.parts(level, block.number)
                left = {number: _left_of(up[level - 2], name, below) for number, below in parts.items()}
                edges |= {_settled_name(name, number): rows for number, rows in _by_part(scores, left).items()}
        return BlockOutput(edges=edges, facts={f"edges_{name}": len(rows) for name, rows in edges.items()})

    yield settle_block


def _by_part(scores: RagEdges, left: dict[int, FaceGraph]) -> dict[int, RagEdges]:
    """The scores for each part; a pair that occurs in several parts is assigned to the first only."""
    found, rest = {}, scores
    for number in range(PARTS):
        named = _is_among(rest, left[number]) if number in left else np.zeros(len(rest), bool)
        found[number] = _rows(rest, named)
        rest = _rows(rest, ~named)
    return found


def _is_among(edges: RagEdges, graph: FaceGraph) -> NDArray[np.bool_]:
    pair = np.dtype([("u", np.uint64), ("v", np.uint64)])
    scored, known = np.empty(len(edges), pair), np.empty(len(graph), pair)
    scored["u"], scored["v"], known["u"], known["v"] = edges.u, edges.v, graph.u, graph.v
    return np.isin(scored, known)


def _rows(edges: RagEdges, chosen: NDArray[np.bool_]) -> RagEdges:
    return RagEdges(edges.u[chosen], edges.v[chosen], edges.merge_score[chosen])


def _settled_name(merge_function: str, part: int) -> str:
    return f"settled_{merge_function}_{part}"


def _left_of(up: BlockTask, merge_function: str, number: int) -> FaceGraph:
    rows = up.rag_store.read_edges(up.key, f"left_{merge_function}", number)
    if not isinstance(rows, RegionFaces):
        raise BadData("these rows are no faces of regions", where=up.marks.where, fix="lsdflow repair EXPERIMENT")
    return graph_of(rows)


def _stored_faces(faces: BlockTask, numbers: list[int]) -> Iterator[RagFaces]:
    """The rows of blocks; accepted failed blocks have none, so scores are those of the other faces."""
    for number in sorted({*numbers} - recorded_numbers(faces)):
        rows = faces.rag_store.read_edges(faces.key, FACES, number)
        if not isinstance(rows, RagFaces):
            raise BadData("these rows are no faces", where=faces.marks.where, fix="lsdflow repair EXPERIMENT")
        yield rows
