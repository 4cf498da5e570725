"""One sweep gives, at every threshold, what a plain search over that threshold's own edges gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_segment.components import SortedIds, ThresholdSweep

ID = st.integers(1, 2**63 - 1) | st.integers(1, 50) | st.integers(10**12, 10**12 + 100)
Graph = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def random_graph(seed: int, nodes: int = 30, edges: int = 60, *, ties: bool = True) -> Graph:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(2**62, nodes, replace=False).astype(np.uint64) + 1)
    ends = np.sort(ids[rng.integers(0, nodes, (edges, 2))], axis=1)
    ends = ends[ends[:, 0] < ends[:, 1]]
    scores = rng.random(len(ends)).astype(np.float32)
    scores = (np.round(scores * 8) / 8).astype(np.float32) if ties else scores
    scores[rng.random(len(ends)) < 0.1] = np.nan
    return ids, ends[:, 0], ends[:, 1], scores


def slow_segments(graph: Graph, threshold: float) -> list[int]:
    """Breadth-first search over the edges with score <= threshold; a segment is named by its smallest fragment."""
    ids, u, v, scores = graph
    neighbours: dict[int, list[int]] = {int(i): [] for i in ids}
    for a, b, score in zip(u.tolist(), v.tolist(), scores, strict=True):
        if score <= np.float32(threshold):
            neighbours[a].append(b)
            neighbours[b].append(a)
    name: dict[int, int] = {}
    for start in sorted(neighbours):
        queue = [start] if start not in name else []
        while queue:
            node = queue.pop()
            if node not in name:
                name[node] = start
                queue.extend(neighbours[node])
    return [name[int(i)] for i in ids]


def swept(
    graph: Graph, thresholds: list[float], order: np.ndarray | None = None, batch: int = 1000, buffer: int = 1000
):
    ids, u, v, scores = graph
    order = np.arange(len(u)) if order is None else order
    sweep = ThresholdSweep(ids, thresholds, buffer_edges=buffer)
    for begin in range(0, len(order), batch):
        part = order[begin : begin + batch]
        sweep.add(u[part], v[part], scores[part])
    return [ids[positions].tolist() for positions in sweep.roots()]


THRESHOLDS = [0.0, 0.125, 0.2, 0.25, 0.5, 0.9, 1.0]


@pytest.mark.proves("SEG-01")
@given(st.integers(0, 100_000), st.booleans())
def test_every_threshold_equals_a_search_over_its_own_edges(seed: int, ties: bool) -> None:
    graph = random_graph(seed, ties=ties)
    assert swept(graph, THRESHOLDS) == [slow_segments(graph, t) for t in THRESHOLDS]


@given(st.integers(0, 100_000), st.integers(1, 20), st.integers(0, 15))
def test_order_batches_and_a_small_buffer_change_nothing(seed: int, batch: int, buffer: int) -> None:
    graph = random_graph(seed)
    order = np.random.default_rng(seed + 1).permutation(len(graph[1]))
    assert swept(graph, THRESHOLDS, order, batch, buffer) == swept(graph, THRESHOLDS)


@pytest.mark.proves("SEG-03")
@given(st.integers(0, 100_000))
def test_a_higher_threshold_merges_more_and_segments_are_nested(seed: int) -> None:
    segments = swept(random_graph(seed), THRESHOLDS)
    for finer, coarser in itertools.pairwise(segments):
        assert len(set(coarser)) <= len(set(finer))
        assert len(set(zip(finer, coarser, strict=True))) == len(set(finer))


def test_the_buffer_never_holds_more_than_a_forest_and_one_batch() -> None:
    ids, u, v, scores = random_graph(3, nodes=20, edges=5000, ties=False)
    sweep = ThresholdSweep(ids, [0.5, 1.0], buffer_edges=100)
    for begin in range(0, len(u), 50):
        sweep.add(u[begin : begin + 50], v[begin : begin + 50], scores[begin : begin + 50])
        assert sweep._waiting_edges <= 100
        assert len(sweep._kept[2]) < len(ids)


def test_no_real_segment_becomes_background() -> None:
    """The lineage numbered components from 0: one neuron vanished. Ids here are fragment ids, so never 0."""
    ids = np.array([1, 2, 3, 4, 5], np.uint64)
    sweep = ThresholdSweep(ids, [0.5])
    sweep.add(ids[:1], ids[1:2], np.array([0.1], np.float32))
    (segments,) = (ids[p].tolist() for p in sweep.roots())
    assert segments == [1, 1, 3, 4, 5]


def test_a_score_equal_to_the_threshold_merges_and_nan_never_does() -> None:
    ids = np.array([1, 2, 3], np.uint64)
    sweep = ThresholdSweep(ids, [0.3, 1.0])
    sweep.add(np.array([1, 2], np.uint64), np.array([2, 3], np.uint64), np.array([0.3, np.nan], np.float32))
    assert [ids[p].tolist() for p in sweep.roots()] == [[1, 1, 3], [1, 1, 3]]


def test_a_graph_without_edges_keeps_every_fragment() -> None:
    ids = np.array([4, 9], np.uint64)
    assert [ids[p].tolist() for p in ThresholdSweep(ids, [0.5]).roots()] == [[4, 9]]


def test_roots_can_be_computed_twice() -> None:
    graph = random_graph(5)
    sweep = ThresholdSweep(graph[0], THRESHOLDS)
    sweep.add(*graph[1:])
    first = [p.tolist() for p in sweep.roots()]
    assert [p.tolist() for p in sweep.roots()] == first


@pytest.mark.parametrize("fragments", [[0, 1, 2], [1, 1, 2], [2, 1], []])
def test_fragments_that_cannot_be_nodes_are_refused(fragments: list[int]) -> None:
    with pytest.raises(BadData):
        ThresholdSweep(np.array(fragments, np.uint64), [0.5])


def test_an_edge_to_an_unknown_fragment_is_refused_by_name() -> None:
    sweep = ThresholdSweep(np.array([1, 2], np.uint64), [0.5])
    with pytest.raises(BadData, match="fragment 77"):
        sweep.add(np.array([1], np.uint64), np.array([77], np.uint64), np.array([0.1], np.float32))


@given(st.sets(ID, min_size=1, max_size=60), st.lists(ID, max_size=60))
def test_every_id_is_found_at_its_position_and_no_other(ids: set[int], others: list[int]) -> None:
    listed = sorted(ids)
    wanted = [*others, *listed]
    positions = np.empty(len(wanted), np.int32)
    unknown = SortedIds(np.array(listed, np.uint64)).find(np.array(wanted, np.uint64), positions)
    assert positions.tolist() == [listed.index(i) if i in ids else -1 for i in wanted]
    assert unknown == sum(i not in ids for i in wanted)


@pytest.mark.parametrize("spread", [1, 3, 2**40])
def test_ids_close_together_and_far_apart(spread: int) -> None:
    crowd = np.arange(1, 5001, dtype=np.uint64)
    ids = np.unique(np.concatenate([crowd, crowd * np.uint64(spread) + np.uint64(2**50)]))
    positions = np.empty(len(ids), np.int64)
    assert SortedIds(ids).find(ids, positions) == 0
    assert positions.tolist() == list(range(len(ids)))
    assert SortedIds(ids).find(np.array([0, 2**62, 2**50 - 1], np.uint64), positions[:3]) == 3
