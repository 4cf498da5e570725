"""Agglomeration in super-blocks, up and down, gives every pair the score it has in the whole graph, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import FaceGraph, add_faces, graph_of, rows_of
from lsdflow_agglomerate.faces import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.graph_agglomeration import (
    SuperBlock,
    agglomerate_super_block,
    graph_of_faces,
    graph_of_parts,
    score_graph,
    settled,
)
from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS
from lsdflow_agglomerate.super_blocks import PARTS, SuperBlocks
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.graph import RagEdges, RagFaces
from lsdflow_runtime.blocks import BlockPlan

FEW = st.sampled_from([0, 1, 90, 91, 160, 255])
ROWS = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 11), FEW, st.integers(1, 4)).filter(lambda row: row[0] != row[1]),
    max_size=60,
)


def faces_of(rows: list[tuple[int, int, int, int]]) -> RagFaces:
    columns = np.array(rows, np.uint64).reshape(-1, 4)
    ends = np.sort(columns[:, :2], axis=1) * np.uint64(7) + np.uint64(2**40)
    return RagFaces.of(ends[:, 0], ends[:, 1], columns[:, 2].astype(np.uint8), columns[:, 3])


def pairs_of(edges: RagEdges | FaceGraph) -> list[tuple[int, int]]:
    return list(zip(edges.u.tolist(), edges.v.tolist(), strict=True))


def in_two_levels(blocks: list[RagFaces], merge_function: str, waiting: list[NDArray[np.uint64]]) -> list[RagEdges]:
    """Each block a part, all of them together the whole: scores as each part stores them."""
    nobody = np.zeros(0, np.uint64)
    graphs = [graph_of_faces(add_faces([block]), merge_function) for block in blocks]
    parts: list[SuperBlock] = []
    for graph, waits in zip(graphs, waiting, strict=True):
        parts.append(agglomerate_super_block(graph, waits, merge_function))
    stored = [graph_of(rows_of(part.left)) for part in parts]
    whole = graph_of_parts(stored, merge_function)
    top = RagEdges(whole.u, whole.v, agglomerate_super_block(whole, nobody, merge_function).score)
    scores: list[RagEdges] = []
    taken: set[tuple[int, int]] = set()
    for graph, part in zip(graphs, parts, strict=True):
        own = np.array([p in set(pairs_of(part.left)) - taken for p in pairs_of(top)], bool)
        taken |= set(pairs_of(part.left))
        scores.append(settled(graph, part, RagEdges(top.u[own], top.v[own], top.merge_score[own])))
    return scores


@pytest.mark.parametrize("merge_function", MERGE_FUNCTIONS)
@settings(max_examples=80, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 2**16), count=st.integers(1, 5), careful=st.booleans())
def test_scores_of_parts_are_those_of_the_whole_graph_each_pair_once(
    merge_function: str, rows: list[tuple[int, int, int, int]], seed: int, count: int, careful: bool
) -> None:
    """Also if more fragments wait than must."""
    generator = np.random.default_rng(seed)
    part_of = generator.integers(0, count, len(rows))
    blocks = [faces_of([row for row, p in zip(rows, part_of, strict=True) if p == n]) for n in range(count)]
    waiting = []
    for number in range(count):
        others = [b for n, b in enumerate(blocks) if n != number]
        named = [np.zeros(0, np.uint64), *(ends for b in others for ends in (b.u, b.v))]
        more = np.unique(blocks[number].u)[:: int(generator.integers(1, 4))] if careful else np.zeros(0, np.uint64)
        waiting.append(np.concatenate([*named, more]))
    wanted = score_graph(add_faces(blocks), merge_function)
    found = RagEdges.concatenate(in_two_levels(blocks, merge_function, waiting))
    order = np.lexsort((found.v, found.u))
    assert found.u[order].tolist() == wanted.u.tolist()
    assert found.v[order].tolist() == wanted.v.tolist()
    np.testing.assert_array_equal(found.merge_score[order], wanted.merge_score)


@given(rows=ROWS)
def test_what_is_left_of_a_super_block_is_stored_and_read_back(rows: list[tuple[int, int, int, int]]) -> None:
    left = agglomerate_super_block(add_faces([faces_of(rows)]), faces_of(rows[::2]).u, "hist_quant_75").left
    again = graph_of(rows_of(left))
    for name in ("u", "v", "origin", "first", "affinity", "count"):
        np.testing.assert_array_equal(getattr(again, name), getattr(left, name))


def super_blocks(total: Box, edge: Vox3, shape: Vox3, reach: Vox3 = (0, 0, 0)) -> SuperBlocks:
    return SuperBlocks(BlockPlan(total, edge), shape, reach, total.end_vox)


def test_levels_double_until_one_super_block_is_the_whole() -> None:
    work = super_blocks(Box((3, 0, 5), (40, 90, 31)), (8, 10, 16), (16, 20, 16))
    assert [work.plan(level).grid_shape for level in range(1, work.levels + 1)] == [
        (3, 5, 2),
        (2, 3, 1),
        (1, 2, 1),
        (1, 1, 1),
    ]
    assert super_blocks(Box((0, 0, 0), (8, 8, 8)), (8, 8, 8), (16, 16, 16)).levels == 1


def test_every_super_block_is_inside_one_of_the_next_level() -> None:
    work = super_blocks(Box((3, 0, 5), (40, 90, 31)), (8, 10, 16), (16, 20, 16))
    for level in range(2, work.levels + 1):
        below, found = work.plan(level - 1), []
        for number in range(len(work.plan(level))):
            parts = work.parts(level, number)
            assert set(parts) <= set(range(PARTS))
            for part, small in parts.items():
                assert work.whole(level - 1, small) == (number, part)
                assert work.plan(level).block(number).write.contains(below.block(small).write)
                found.append(small)
        assert sorted(found) == list(range(len(below)))


def test_blocks_of_faces_of_a_super_block_are_those_that_overlap_it() -> None:
    work = super_blocks(Box((3, 0, 5), (40, 90, 31)), (8, 10, 16), (16, 20, 16))
    for level in range(1, work.levels + 1):
        for block in work.plan(level).blocks():
            wanted = [b.number for b in work.faces.blocks() if not b.write.intersect(block.write).is_empty]
            assert work.face_blocks(block.write) == wanted


@pytest.mark.parametrize("seed", range(6))
def test_fragments_that_rows_outside_name_are_all_held_back_and_some_are_not(seed: int) -> None:
    """Fragments by the rule of names: a block may give a voxel any seed that it can see."""
    generator = np.random.default_rng(seed)
    total, edge, context = Box((0, 0, 0), (24, 20, 28)), (4, 5, 4), (2, 1, 2)
    fragments = np.zeros(total.shape_vox, np.uint64)
    for block in BlockPlan(total, edge, context).blocks():
        seeds = block.read.intersect(total)
        places = [
            generator.integers(b, e, block.write.size) for b, e in zip(seeds.begin_vox, seeds.end_vox, strict=True)
        ]
        ids = np.ravel_multi_index(places, total.shape_vox).astype(np.uint64) + np.uint64(1)
        fragments[block.write.slices()] = generator.choice(ids[:2], block.write.shape_vox)
    affs = generator.integers(0, 256, (3, *total.shape_vox)).astype(np.uint8)
    work = super_blocks(total, edge, (8, 10, 12), context)
    rows = {}
    for block in work.faces.blocks():
        read = box_with_lower_neighbours(block.write, total)
        cut = affs[(slice(None), *block.write.slices())]
        rows[block.number] = count_faces(cut, fragments[read.slices()], block.write, read)
    free = 0
    for level in range(1, work.levels + 1):
        for block in work.plan(level).blocks():
            inside = set(work.face_blocks(block.write))
            named = named_in(rows, inside)
            outside = np.intersect1d(named, named_in(rows, set(rows) - inside))
            held = named[work.near_the_outside(named, block.write)]
            above = np.intersect1d(named, named_in(rows, set(work.face_blocks_above(block.write))))
            assert set(outside.tolist()) <= set(held.tolist()) | set(above.tolist())
            free += len(set(named.tolist()) - set(held.tolist()) - set(above.tolist()))
    assert free > 10


def named_in(rows: dict[int, RagFaces], numbers: set[int]) -> NDArray[np.uint64]:
    ends = [ends for n in numbers for ends in (rows[n].u, rows[n].v)]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *ends]))
