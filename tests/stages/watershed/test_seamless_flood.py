"""Floods with ties decided by seeds: equal to a heap, and to themselves in a flipped volume."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_watershed.seamless_flood import flood_by_seed

NEIGHBOURS = [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1), (0, 1, 0), (1, 0, 0)]


def flood_with_a_heap(depth: NDArray[np.int32], seeds: NDArray[np.uint32], in_xy: bool) -> NDArray[np.uint32]:
    """Slow reference: a voxel gets the label with the smallest (time, label); time = (-level, step, time before)."""
    labels = np.zeros_like(seeds)
    heap = [((-int(depth[p]), 0, ()), int(seeds[p]), p) for p in zip(*np.nonzero(seeds), strict=True)]
    heapq.heapify(heap)
    while heap:
        time, label, voxel = heapq.heappop(heap)
        if labels[voxel] or seeds[voxel] not in (0, label):
            continue
        labels[voxel] = label
        for move in NEIGHBOURS:
            near = tuple(int(a + b) for a, b in zip(voxel, move, strict=True))
            inside = all(0 <= n < s for n, s in zip(near, depth.shape, strict=True))
            if inside and not labels[near] and not seeds[near] and not (in_xy and move[0]):
                level, step, _ = time
                height = -int(depth[near])
                walked = (level, step + 1, time) if height == level else (height, 0, time)
                heapq.heappush(heap, (time if height < level else walked, label, near))
    return labels


def random_volume(seed: int) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Depths with many ties, and a few scattered seeds."""
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 12, 3))
    depth = generator.integers(0, int(generator.integers(1, 20)), shape).astype(np.int32)
    seeds = np.zeros(shape, np.uint32)
    for label in range(1, 6):
        seeds[tuple(generator.integers(0, n) for n in shape)] = label
    return depth, seeds


@pytest.mark.parametrize("in_xy", [False, True])
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_floods_equal_the_heap_reference(in_xy: bool, seed: int) -> None:
    depth, seeds = random_volume(seed)
    assert np.array_equal(flood_by_seed(depth, seeds, in_xy), flood_with_a_heap(depth, seeds, in_xy))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_the_place_of_a_voxel_in_memory_takes_no_part(seed: int) -> None:
    """Mirrored and turned volumes give the mirrored and turned labels."""
    depth, seeds = random_volume(seed)
    wanted = flood_by_seed(depth, seeds, in_xy=False)
    for axes in itertools.permutations(range(3)):
        for flipped in ((), (0,), (1, 2), (0, 1, 2)):
            turned = [np.ascontiguousarray(np.flip(a.transpose(axes), flipped)) for a in (depth, seeds, wanted)]
            assert np.array_equal(flood_by_seed(turned[0], turned[1], in_xy=False), turned[2])


def test_the_smaller_seed_wins_where_both_come_in_the_same_step() -> None:
    depth = np.array([[[9, 3, 3, 3, 9]]], np.int32)
    for left, right in ((1, 2), (2, 1)):
        seeds = np.array([[[left, 0, 0, 0, right]]], np.uint32)
        assert flood_by_seed(depth, seeds, in_xy=False).tolist() == [[[left, left, 1, right, right]]]


def test_the_steeper_side_comes_first_whatever_the_seed() -> None:
    depth = np.array([[[9, 3, 3, 3, 5]]], np.int32)
    for left, right in ((1, 2), (2, 1)):
        seeds = np.array([[[left, 0, 0, 0, right]]], np.uint32)
        assert flood_by_seed(depth, seeds, in_xy=False).tolist() == [[[left, left, left, right, right]]]


def test_a_hill_without_a_seed_goes_to_one_seed_as_a_whole() -> None:
    depth = np.array([[[7, 5, 3, 3, 8, 6, 3, 3, 5, 7]]], np.int32)
    seeds = np.array([[[1, 0, 0, 0, 0, 0, 0, 0, 0, 2]]], np.uint32)
    assert flood_by_seed(depth, seeds, in_xy=False).tolist() == [[[1] * 6 + [2] * 4]]
    assert flood_by_seed(depth, seeds[..., ::-1].copy(), in_xy=False).tolist() == [[[2] * 4 + [1] * 6]]


def test_a_deeper_way_is_taken_before_a_shorter_one() -> None:
    depth = np.array([[[9, 5, 5, 5, 4, 1, 9]]], np.int32)
    seeds = np.array([[[2, 0, 0, 0, 0, 0, 1]]], np.uint32)
    assert flood_by_seed(depth, seeds, in_xy=False).tolist() == [[[2, 2, 2, 2, 2, 1, 1]]]


def test_an_empty_volume_and_one_without_seeds() -> None:
    assert flood_by_seed(np.zeros((0, 3, 3), np.int32), np.zeros((0, 3, 3), np.uint32), in_xy=False).size == 0
    assert not flood_by_seed(np.ones((2, 3, 3), np.int32), np.zeros((2, 3, 3), np.uint32), in_xy=False).any()


def test_inputs_are_not_changed() -> None:
    depth, seeds = random_volume(1)
    before = depth.copy(), seeds.copy()
    flood_by_seed(depth, seeds, in_xy=False)
    assert np.array_equal(depth, before[0])
    assert np.array_equal(seeds, before[1])
