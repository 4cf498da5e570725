"""Faces between fragments are counted once each, wherever blocks are cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import add_faces
from lsdflow_agglomerate.faces import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.graph_agglomeration import score_graph
from lsdflow_agglomerate.scoring import dense_labels, touching_pairs
from lsdflow_contract.errors import InternalError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.graph import RagFaces
from lsdflow_runtime.blocks import BlockPlan

Rows = dict[tuple[int, int, int], int]


def slow_count(affs: NDArray[np.uint8], fragments: NDArray[np.uint64]) -> Rows:
    """One face after another."""
    found: Counter[tuple[int, int, int]] = Counter()
    for axis in range(3):
        for voxel in np.ndindex(fragments.shape):
            lower = tuple(int(i) - int(a == axis) for a, i in enumerate(voxel))
            a, b = int(fragments[voxel]), int(fragments[lower]) if lower[axis] >= 0 else 0
            if a and b and a != b:
                found[min(a, b), max(a, b), int(affs[(axis, *voxel)])] += 1
    return dict(found)


def rows_of(faces: RagFaces) -> Rows:
    columns = (faces.u, faces.v, faces.affinity, faces.count)
    listed = list(zip(*(c.tolist() for c in columns), strict=True))
    assert listed == sorted(listed), "rows are ascending"
    return {(u, v, affinity): count for u, v, affinity, count in listed}


def faces_by_block(affs: NDArray[np.uint8], fragments: NDArray[np.uint64], block_vox: Vox3) -> list[RagFaces]:
    z, y, x = fragments.shape
    total = Box((0, 0, 0), (z, y, x))
    parts = []
    for block in BlockPlan(total, block_vox).blocks():
        read = box_with_lower_neighbours(block.write, total)
        seen = affs[(slice(None), *block.write.slices())]
        parts.append(count_faces(seen, fragments[read.slices()], block.write, read))
    return parts


@pytest.mark.parametrize("block_vox", [(30, 30, 30), (8, 16, 8), (1, 30, 5), (7, 1, 3)])
def test_blocks_of_any_shape_add_up_to_the_slow_count_of_the_volume(
    affs: NDArray[np.uint8], labels: NDArray[np.uint64], block_vox: Vox3
) -> None:
    fragments = np.where(labels > 0, labels + np.uint64(2**45), 0).astype(np.uint64)
    total: Counter[tuple[int, int, int]] = Counter()
    for part in faces_by_block(affs, fragments, block_vox):
        total.update(rows_of(part))
    assert dict(total) == slow_count(affs, fragments)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    block_vox=st.tuples(*[st.integers(1, 7)] * 3),
    labels=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_random_volumes_add_up(shape: Vox3, block_vox: Vox3, labels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    fragments = generator.integers(0, labels + 1, shape).astype(np.uint64)
    affs = generator.integers(0, 256, (3, *shape)).astype(np.uint8)
    total: Counter[tuple[int, int, int]] = Counter()
    for part in faces_by_block(affs, fragments, block_vox):
        total.update(rows_of(part))
    assert dict(total) == slow_count(affs, fragments)


@pytest.mark.parametrize("merge_function", ["mean", "hist_quant_75", "hist_quant_50_initmax"])
def test_scores_are_the_same_for_every_block_shape_and_order(
    affs: NDArray[np.uint8], labels: NDArray[np.uint64], merge_function: str
) -> None:
    """The goal: the same answer whatever the block size."""
    wanted = score_graph(add_faces(faces_by_block(affs, labels, (22, 30, 26))), merge_function)
    for block_vox in ((8, 16, 8), (5, 7, 11), (22, 2, 26)):
        parts = faces_by_block(affs, labels, block_vox)
        for order in (parts, parts[::-1]):
            found = score_graph(add_faces(order), merge_function)
            for name in ("u", "v", "merge_score"):
                np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert np.unique(wanted.merge_score).size > 2


def test_pairs_are_those_that_touch(affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> None:
    dense, ids = dense_labels(labels)
    u, v = touching_pairs(dense)
    graph = add_faces(faces_by_block(affs, labels, (8, 8, 8)))
    assert np.array_equal(graph.u, ids[u])
    assert np.array_equal(graph.v, ids[v])


def test_a_volume_without_fragments_has_no_faces() -> None:
    box = Box((0, 0, 0), (3, 3, 3))
    assert len(count_faces(np.zeros((3, 3, 3, 3), np.uint8), np.zeros((3, 3, 3), np.uint64), box, box)) == 0


def test_arrays_of_other_boxes_are_refused() -> None:
    box = Box((0, 0, 0), (3, 3, 3))
    with pytest.raises(InternalError):
        count_faces(np.zeros((3, 3, 3, 3), np.uint8), np.zeros((4, 3, 3), np.uint64), box, box)
