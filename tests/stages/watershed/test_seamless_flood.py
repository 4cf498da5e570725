"""Floods with ties decided by seeds: equal to a heap, and to themselves in a flipped volume. Depths of the boundary."""

from __future__ import annotations

import heapq
import itertools
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_contract.arrays import quantise_u8
from lsdflow_watershed.distance import inside_mask, squared_distance
from lsdflow_watershed.fragments import FragmentRules, seeded_fragments
from lsdflow_watershed.ids import number_seeds
from lsdflow_watershed.seamless_flood import flood_by_seed
from lsdflow_watershed.seeds import label_seeds

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


def fragments_by_hand(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8], rules: FragmentRules
) -> tuple[NDArray[np.uint32], int]:
    """Slow reference, voxel by voxel; and the number of voxels that the published rule gives to another seed."""
    in_xy = rules.fragments_in_xy
    inside = inside_mask(affs, in_xy) & (mask > 0)
    distance = squared_distance(inside, in_xy)
    seeds, _ = number_seeds(label_seeds(distance, rules.min_seed_distance_vox, in_xy))
    depth = np.zeros(mask.shape, np.int32)
    for voxel in itertools.product(*map(range, mask.shape)):
        if distance[voxel] > 0:
            depth[voxel] = 6 * 255 + distance[voxel]  # deeper than any of the others, in the old order
        elif mask[voxel]:
            for axis in (1, 2) if in_xy else (0, 1, 2):
                after = list(voxel)
                after[axis] = min(voxel[axis] + 1, mask.shape[axis] - 1)  # at the end: the one before it again
                depth[voxel] += int(affs[(axis, *voxel)]) + int(affs[(axis, *after)])
    labels = flood_with_a_heap(depth, seeds, in_xy) * (mask > 0)
    published = flood_by_seed(distance, seeds, in_xy) * (mask > 0)
    return labels.astype(np.uint32), int((labels != published).sum())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("in_xy", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_the_boundary_zone_is_flooded_as_by_hand(in_xy: bool, masked: bool, seed: int) -> None:
    """Few grey levels give many ties; shapes with one voxel along an axis are among them."""
    generator = np.random.default_rng(seed)
    affs = (generator.integers(0, 6, (3, *generator.integers(1, 12, 3))) * 51).astype(np.uint8)
    mask = (generator.random(affs.shape[1:]) < (0.8 if masked else 2)).astype(np.uint8)
    rules = FragmentRules(fragments_in_xy=in_xy, min_seed_distance_vox=3)
    found, _ = seeded_fragments(affs, mask if masked else None, rules)
    assert np.array_equal(found, fragments_by_hand(affs, mask, rules)[0])


@pytest.mark.parametrize("in_xy", [False, True])
def test_the_boundary_zone_of_a_real_network_is_flooded_as_by_hand(shared_data: Path, in_xy: bool) -> None:
    predicted = zarr.open_array(shared_data / "lsd_reference" / "fib.zarr" / "pred_affs", mode="r")
    affs = quantise_u8(np.asarray(predicted[:, 10:26, 4:28, 12:36]).astype(np.float32))
    mask = np.ones(affs.shape[1:], np.uint8)
    mask[:, :5, 18:] = 0
    rules = FragmentRules(fragments_in_xy=in_xy, min_seed_distance_vox=5)
    found, first = seeded_fragments(affs, mask, rules)
    wanted, moved = fragments_by_hand(affs, mask, rules)
    assert np.array_equal(found, wanted)
    assert len(first) > 5
    assert moved > 50, "the published rule gives these to other seeds"


def in_a_row(*affinities: float) -> NDArray[np.uint8]:
    return np.broadcast_to((np.array(affinities) * 255).astype(np.uint8), (3, 1, 1, len(affinities))).copy()


def test_floods_meet_where_the_affinity_is_lowest_and_as_published_in_the_middle() -> None:
    affs = in_a_row(0.9, 0.9, 0.9, 0.4, 0.4, 0.4, 0.4, 0.4, 0.1, 0.9, 0.9, 0.9)
    found, _ = seeded_fragments(affs, None, FragmentRules())
    assert found.ravel().tolist() == [1] * 8 + [2] * 4
    found, _ = seeded_fragments(affs, None, FragmentRules(boundary="distance"))
    assert found.ravel().tolist() == [1] * 6 + [2] * 6


def test_what_is_outside_the_mask_carries_no_flood_before_the_boundary() -> None:
    """The right cell would reach the middle first, over the voxels with high affinities above it."""
    affs = np.zeros((3, 1, 2, 9), np.uint8)
    affs[:, :, 1:] = in_a_row(0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.9, 0.9, 0.9)
    affs[2, 0, 1, 6] = affs[2, 0, 1, 5]  # as from the left cell to the boundary
    affs[:, 0, 0, 4:] = 255
    mask = np.array([[[0] * 9, [1] * 9]], np.uint8)
    found, _ = seeded_fragments(affs, mask, FragmentRules())
    assert found.tolist() == [[[0] * 9, [1] * 5 + [2] * 4]], "equal ways: the smaller seed has the middle"
