"""Agglomeration on the graph is that of a slow reference, and of waterz; in parts it is that of the whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import waterz
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_agglomerate.face_graph import FaceGraph, add_faces, join_graphs
from lsdflow_agglomerate.faces import count_faces
from lsdflow_agglomerate.graph_agglomeration import MergeTree, agglomerate_super_block, score_graph
from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS, WATERZ_NAMES
from lsdflow_agglomerate.scoring import score_edges
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagEdges, RagFaces
from lsdflow_contract.testing import same_partition, voronoi_labels

_SPEC = importlib.util.spec_from_file_location("slow_merging", Path(__file__).with_name("slow_merging.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
slow_merging = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(slow_merging)

# Few affinities: many equal scores. Ids that are not dense.
ROWS = st.lists(
    st.tuples(
        st.integers(0, 13), st.integers(0, 13), st.sampled_from([0, 1, 90, 91, 160, 255]), st.integers(1, 4)
    ).filter(lambda row: row[0] != row[1]),
    max_size=60,
)


def faces_of(rows: list[tuple[int, int, int, int]]) -> RagFaces:
    columns = np.array(rows, np.uint64).reshape(-1, 4)
    ends = np.sort(columns[:, :2], axis=1) * np.uint64(7) + np.uint64(2**40)
    return RagFaces.of(ends[:, 0], ends[:, 1], columns[:, 2].astype(np.uint8), columns[:, 3])


def listed(tree: MergeTree) -> list[tuple[int, int, float]]:
    return list(zip(tree.a.tolist(), tree.b.tolist(), tree.score.tolist(), strict=True))


def by_pair(edges: RagEdges) -> dict[tuple[int, int], float]:
    scores = zip(edges.u.tolist(), edges.v.tolist(), edges.merge_score.tolist(), strict=True)
    return {(u, v): score for u, v, score in scores if score == score}


@pytest.mark.parametrize("merge_function", MERGE_FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_merges_and_scores_are_those_of_the_slow_reference(
    merge_function: str, rows: list[tuple[int, int, int, int]]
) -> None:
    faces = faces_of(rows)
    merges, joined, _ = slow_merging.slow_merges(faces, merge_function)
    assert by_pair(score_graph(add_faces([faces]), merge_function)) == joined
    if not merge_function.endswith("initmax"):
        assert listed(merge_tree(add_faces([faces]), merge_function)) == merges


@pytest.mark.parametrize("merge_function", MERGE_FUNCTIONS)
@settings(max_examples=40, deadline=None)
@given(faces=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=2, max_size=2))
def test_scores_are_from_0_to_1_and_that_of_a_union_is_never_below_those_of_both_parts(
    merge_function: str, faces: list[list[int]]
) -> None:
    parts = [faces_of([(1, 2, affinity, 1) for affinity in part]) for part in faces]
    scored = [score_graph(add_faces(part), merge_function).merge_score for part in ([parts[0]], [parts[1]], parts)]
    one, other, union = (1 if np.isnan(score) else score for (score,) in scored)
    assert 0 <= min(one, other) <= union <= 1


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 2**16))
def test_neither_the_order_of_rows_nor_the_names_order_of_blocks_matters(
    rows: list[tuple[int, int, int, int]], seed: int
) -> None:
    whole = add_faces([faces_of(rows)])
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    blocks = [faces_of([rows[i] for i in part]) for part in np.array_split(shuffled, 4)]
    found = add_faces(blocks)
    for name in ("u", "v", "first", "affinity", "count", "origin"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert listed(merge_tree(found, "hist_quant_75")) == listed(merge_tree(whole, "hist_quant_75"))


def merge_tree(graph: FaceGraph, merge_function: str) -> MergeTree:
    return agglomerate_super_block(graph, np.zeros(0, np.uint64), merge_function).merges


def all_merges(parts: list[MergeTree]) -> MergeTree:
    """The merges of all parts, cheapest first."""
    a, b, score = (np.concatenate([getattr(part, name) for part in parts]) for name in ("a", "b", "score"))
    origin = np.concatenate([part.origin for part in parts])
    order = np.lexsort((origin[:, 1], origin[:, 0], score))
    return MergeTree(a[order], b[order], score[order], origin[order])


def in_parts(blocks: list[RagFaces], merge_function: str, seed: int) -> tuple[MergeTree, FaceGraph]:
    """Agglomerate parts, then joined parts, in a random tree of joins."""
    generator = np.random.default_rng(seed)
    trees: list[MergeTree] = []
    parts = [(add_faces([block]), {number}) for number, block in enumerate(blocks)]
    while True:
        done = []
        for graph, members in parts:
            outside = [b for number, b in enumerate(blocks) if number not in members]
            named = np.concatenate([np.zeros(0, np.uint64), *(ends for b in outside for ends in (b.u, b.v))])
            part = agglomerate_super_block(graph, named, merge_function)
            trees.append(part.merges)
            done.append((part.left, members))
        if len(done) == 1:
            return all_merges(trees), done[0][0]
        order = generator.permutation(len(done))
        joined = [done[i] for i in order]
        count = int(generator.integers(2, len(joined) + 1))
        graph = join_graphs([g for g, _ in joined[:count]])
        parts = [(graph, set().union(*(m for _, m in joined[:count]))), *joined[count:]]


@pytest.mark.parametrize("merge_function", ["mean", "hist_quant_75", "hist_quant_25"])
@settings(max_examples=200, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 2**16), count=st.integers(1, 6))
def test_super_blocks_give_the_merge_tree_of_the_whole_graph(
    merge_function: str, rows: list[tuple[int, int, int, int]], seed: int, count: int
) -> None:
    generator = np.random.default_rng(seed)
    block_of = generator.integers(0, count, len(rows))
    blocks = [faces_of([row for row, b in zip(rows, block_of, strict=True) if b == n]) for n in range(count)]
    whole = merge_tree(add_faces(blocks), merge_function)
    found, left = in_parts(blocks, merge_function, seed)
    assert listed(found) == listed(whole)
    assert found.origin.tolist() == whole.origin.tolist()
    assert len(left) == 0 or merge_function == "mean"


def test_parts_of_a_volume_merge_inside_themselves_already(affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> None:
    """Else the merges would be right because all of them wait for the top."""
    faces = count_faces(affs, labels, *volume_boxes(labels))
    middle = np.uint64(30)
    below = faces.u < middle
    blocks = [
        RagFaces.of(faces.u[chosen], faces.v[chosen], faces.affinity[chosen], faces.count[chosen])
        for chosen in (below, ~below)
    ]
    outside = np.concatenate([blocks[1].u, blocks[1].v])
    part = agglomerate_super_block(add_faces(blocks[:1]), outside, "hist_quant_75")
    whole = set(listed(merge_tree(add_faces(blocks), "hist_quant_75")))
    assert 0 < len(part.merges.a) < len(whole)
    assert set(listed(part.merges)) <= whole


def volume_boxes(labels: NDArray[np.uint64]) -> tuple[Box, Box]:
    z, y, x = labels.shape
    return Box((0, 0, 0), (z, y, x)), Box((0, 0, 0), (z, y, x))


@pytest.mark.proves("AGG-02")
@pytest.mark.parametrize("merge_function", WATERZ_NAMES)
def test_every_merge_function_of_waterz_scores_a_single_face_as_waterz_does(merge_function: str) -> None:
    generator = np.random.default_rng(0)
    for length in (1, 2, 5, 37, 100):
        affs = np.full((3, 1, length, 2), 200, np.uint8)
        affs[2, 0, :, 1] = generator.integers(0, 256, length)
        fragments = np.ones((1, length, 2), np.uint64)
        fragments[:, :, 1] = 2
        wanted = score_edges(affs, fragments, (merge_function,))[merge_function]
        found = score_graph(add_faces([count_faces(affs, fragments, *volume_boxes(fragments))]), merge_function)
        np.testing.assert_allclose(found.merge_score, wanted.merge_score, atol=1e-6)


def waterz_segments(
    affs: NDArray[np.uint8], fragments: NDArray[np.uint64], merge_function: str, threshold: float, bins: int
) -> NDArray[np.uint64]:
    (segments,) = waterz.agglomerate(
        affs.astype(np.float32) / 255,
        [threshold],
        fragments=fragments.copy(),
        scoring_function=WATERZ_NAMES[merge_function],
        discretize_queue=bins,
    )
    return segments


def segments_at(fragments: NDArray[np.uint64], edges: RagEdges, threshold: float) -> NDArray[np.uint64]:
    names = np.arange(int(fragments.max()) + 1, dtype=np.uint64)
    for u, v in zip(edges.u[edges.merge_score < threshold], edges.v[edges.merge_score < threshold], strict=True):
        names[names == names[v]] = names[u]
    return names[fragments]


def test_means_without_ties_give_the_segments_of_waterz_at_every_threshold() -> None:
    generator = np.random.default_rng(8)
    fragments = voronoi_labels((24, 26, 28), 50, seed=4)
    affs = generator.integers(0, 256, (3, *fragments.shape)).astype(np.uint8)
    affs = (affs * generator.random(fragments.shape) ** np.linspace(0.2, 2, 28)).astype(np.uint8)
    faces = count_faces(affs, fragments, *volume_boxes(fragments))
    *_, ties = slow_merging.slow_merges(faces, "mean")
    assert ties == 0
    edges = score_graph(add_faces([faces]), "mean")
    counts = set()
    for threshold in np.linspace(0.3, 0.95, 14):
        wanted = waterz_segments(affs, fragments, "mean", float(threshold), bins=0)
        assert same_partition(segments_at(fragments, edges, float(threshold)), wanted)
        counts.add(len(np.unique(wanted)))
    assert len(counts) > 5


def test_quantiles_without_ties_give_the_segments_of_waterz_at_every_threshold() -> None:
    """Quantiles are 256 different scores: only few regions have none that are equal."""
    checked = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        fragments = voronoi_labels((12, 12, 12), 7, seed=seed)
        pair_base = generator.integers(5, 250, (8, 8))
        affs = np.clip(generator.normal(0, 8, (3, 12, 12, 12)) + pair_base[0, 0], 0, 255)
        for axis in range(3):
            upper, lower = fragments, np.roll(fragments, 1, axis)
            affs[axis] += pair_base[np.minimum(upper, lower), np.maximum(upper, lower)] - pair_base[0, 0]
        affs8 = np.clip(affs, 0, 255).astype(np.uint8)
        faces = count_faces(affs8, fragments, *volume_boxes(fragments))
        if slow_merging.slow_merges(faces, "hist_quant_75")[2]:
            continue
        checked += 1
        edges = score_graph(add_faces([faces]), "hist_quant_75")
        for threshold in np.arange(16, 256, 16) / 256:
            wanted = waterz_segments(affs8, fragments, "hist_quant_75", float(threshold), bins=256)
            assert same_partition(segments_at(fragments, edges, float(threshold)), wanted)
    assert checked > 10


def test_a_graph_without_faces_has_no_edges_and_no_merges() -> None:
    nothing = add_faces([RagFaces.empty()])
    assert len(score_graph(nothing, "mean")) == 0
    assert len(agglomerate_super_block(nothing, np.zeros(0, np.uint64), "mean").left) == 0


def test_the_graph_is_not_changed() -> None:
    graph = add_faces([faces_of([(1, 2, 90, 1), (2, 3, 255, 2), (1, 3, 91, 3)])])
    before = [getattr(graph, n).copy() for n in ("u", "v", "origin", "first", "affinity", "count")]
    merge_tree(graph, "mean")
    after = [getattr(graph, n) for n in ("u", "v", "origin", "first", "affinity", "count")]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_thousand_regions_merge_into_one_while_the_table_is_rebuilt() -> None:
    """Many moved edges fill the table of pairs; scores stay those of the slow reference (a star, then a chain)."""
    generator = np.random.default_rng(1)
    u = generator.integers(0, 120, 3000)
    v = generator.integers(0, 120, 3000)
    rows = [(a, b, int(x), 1) for a, b, x in zip(u, v, generator.integers(0, 256, 3000), strict=True) if a != b]
    faces = faces_of(rows)
    merges, joined, _ = slow_merging.slow_merges(faces, "hist_quant_50")
    assert listed(merge_tree(add_faces([faces]), "hist_quant_50")) == merges
    assert by_pair(score_graph(add_faces([faces]), "hist_quant_50")) == joined
