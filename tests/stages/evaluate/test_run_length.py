"""Expected run length: equal to a slow walk over every edge, 1 for a perfect segmentation, 0 inside mergers."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_evaluate.scores.run_length import RunLengths, Skeletons, run_lengths


def random_skeletons(seed: int) -> Skeletons:
    """A few random trees, some of them in two pieces of one neuron."""
    rng = np.random.default_rng(seed)
    positions, neurons, edges = [], [], []
    for _ in range(rng.integers(1, 6)):
        first, count = len(positions), int(rng.integers(2, 8))
        positions += rng.uniform(0, 100, (count, 3)).tolist()
        neurons += [int(rng.integers(1, 4))] * count
        edges += [(first + int(rng.integers(0, node)), first + node) for node in range(1, count)]
    return Skeletons(np.array(positions), np.array(neurons, np.uint64), np.array(edges, np.int64))


def slow_erl(skeletons: Skeletons, segments: np.ndarray, merge_min_nodes: int) -> tuple[float, float]:
    """(ERL, largest ERL) from dictionaries and a flood fill."""
    nodes = range(len(skeletons.neurons))
    piece = list(nodes)
    for _ in nodes:
        for a, b in skeletons.edges.tolist():
            piece[a] = piece[b] = min(piece[a], piece[b])
    held: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for node in nodes:
        held[int(segments[node])][int(skeletons.neurons[node])] += 1
    merging = {s for s, neurons in held.items() if sum(n >= merge_min_nodes for n in neurons.values()) > 1}
    runs: dict[tuple[int, int], float] = defaultdict(float)
    whole: dict[int, float] = defaultdict(float)
    for a, b in skeletons.edges.tolist():
        length = math.dist(skeletons.positions_nm[a], skeletons.positions_nm[b])
        whole[piece[a]] += length
        if segments[a] == segments[b] != 0 and int(segments[a]) not in merging:
            runs[piece[a], int(segments[a])] += length
    total = sum(whole.values())
    return sum(r * r for r in runs.values()) / total, sum(w * w for w in whole.values()) / total


@pytest.mark.proves("EVA-02")
@given(st.integers(0, 100_000), st.integers(1, 3))
def test_run_lengths_equal_a_slow_walk(seed: int, merge_min_nodes: int) -> None:
    skeletons = random_skeletons(seed)
    segments = np.random.default_rng(seed).integers(0, 5, len(skeletons.neurons)).astype(np.uint64)
    found = run_lengths(skeletons, segments, merge_min_nodes)
    erl, best = slow_erl(skeletons, segments, merge_min_nodes)
    assert found.expected_run_length_nm == pytest.approx(erl)
    assert found.max_erl_nm == pytest.approx(best)
    assert found.edges == found.correct_edges + found.split_edges + found.omitted_edges + found.merged_edges


def chain(length: int, neuron: int, first_nm: float = 0.0) -> Skeletons:
    positions = np.zeros((length, 3))
    positions[:, 2] = first_nm + 10.0 * np.arange(length)
    edges = np.stack([np.arange(length - 1), np.arange(1, length)], axis=1).astype(np.int64)
    return Skeletons(positions, np.full(length, neuron, np.uint64), edges)


def both(a: Skeletons, b: Skeletons) -> Skeletons:
    return Skeletons(
        np.concatenate([a.positions_nm, b.positions_nm]),
        np.concatenate([a.neurons, b.neurons]),
        np.concatenate([a.edges, b.edges + len(a.neurons)]),
    )


@pytest.mark.proves("EVA-02")
def test_a_perfect_segmentation_reaches_the_largest_erl() -> None:
    skeletons = both(chain(11, 1), chain(6, 2))
    found = run_lengths(skeletons, skeletons.neurons)
    assert found.expected_run_length_nm == found.max_erl_nm == (100**2 + 50**2) / 150
    assert found.normalized_erl == 1.0


def test_a_cut_in_the_middle_halves_the_run() -> None:
    found = run_lengths(chain(12, 1), np.array([1] * 6 + [2] * 6, np.uint64))
    assert found.expected_run_length_nm == 2 * 50**2 / 110
    assert (found.split_edges, found.split_skeletons, found.merged_edges) == (1, 1, 0)


def test_a_skeleton_that_is_split_twice_is_one_split_skeleton() -> None:
    found = run_lengths(both(chain(6, 1), chain(6, 2)), np.array([1, 1, 3, 3, 5, 5] + [2] * 6, np.uint64))
    assert (found.split_edges, found.split_skeletons, found.skeletons) == (2, 1, 2)


def test_a_segment_over_two_neurons_has_run_length_zero() -> None:
    found = run_lengths(both(chain(6, 1), chain(6, 2)), np.full(12, 9, np.uint64))
    assert (found.expected_run_length_nm, found.merged_edges, found.merging_segments) == (0.0, 10, 1)


def test_a_touch_of_fewer_nodes_than_asked_is_no_merge() -> None:
    segments = np.array([9] * 7 + [2] * 5, np.uint64)
    assert run_lengths(both(chain(6, 1), chain(6, 2)), segments, 1).merging_segments == 1
    assert run_lengths(both(chain(6, 1), chain(6, 2)), segments, 2).merging_segments == 0


def test_two_pieces_of_one_neuron_in_one_segment_are_no_merge() -> None:
    found = run_lengths(both(chain(6, 1), chain(6, 1, 500.0)), np.full(12, 9, np.uint64))
    assert (found.normalized_erl, found.skeletons) == (1.0, 2)


def test_nodes_in_background_are_omitted_not_merged() -> None:
    found = run_lengths(both(chain(6, 1), chain(6, 2)), np.zeros(12, np.uint64))
    assert (found.omitted_edges, found.merging_segments, found.expected_run_length_nm) == (10, 0, 0.0)


def test_cropping_drops_nodes_and_their_edges() -> None:
    kept = chain(6, 1).only(np.array([True, True, False, True, True, True]))
    assert kept.edges.tolist() == [[0, 1], [2, 3], [3, 4]]
    assert run_lengths(kept, kept.neurons) == RunLengths(
        expected_run_length_nm=(10**2 + 20**2) / 30,
        max_erl_nm=(10**2 + 20**2) / 30,
        normalized_erl=1.0,
        total_path_length_nm=30.0,
        edges=3,
        correct_edges=3,
        split_edges=0,
        omitted_edges=0,
        merged_edges=0,
        merging_segments=0,
        split_skeletons=0,
        skeletons=2,
    )


def test_skeletons_without_length_or_with_wrong_edges_are_refused() -> None:
    alone = Skeletons(np.zeros((2, 3)), np.ones(2, np.uint64), np.zeros((0, 2), np.int64))
    with pytest.raises(BadData, match="no length"):
        run_lengths(alone, np.ones(2, np.uint64))
    with pytest.raises(BadData, match="not there"):
        Skeletons(np.zeros((2, 3)), np.ones(2, np.uint64), np.array([[0, 2]]))
    with pytest.raises(BadData, match="joins two neurons"):
        Skeletons(np.zeros((2, 3)), np.array([1, 2], np.uint64), np.array([[0, 1]]))
