"""The queue-per-distance flood is a seeded watershed, voxel for voxel that of mahotas."""

from __future__ import annotations

import heapq

import mahotas
import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_watershed.flood import flood

NEIGHBOURS = ((-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1), (0, 1, 0), (1, 0, 0))


def flood_with_a_heap(depth: NDArray[np.int32], seeds: NDArray[np.uint32], in_xy: bool) -> NDArray[np.uint32]:
    """Slow reference: a heap of (-depth, order of arrival, voxel)."""
    labels = seeds.copy()
    heap = [(-int(depth[p]), i, p) for i, p in enumerate(zip(*np.nonzero(seeds), strict=True))]
    heapq.heapify(heap)
    arrivals = len(heap)
    while heap:
        _, _, voxel = heapq.heappop(heap)
        for step in NEIGHBOURS:
            near = tuple(int(a + b) for a, b in zip(voxel, step, strict=True))
            inside = all(0 <= n < s for n, s in zip(near, depth.shape, strict=True))
            if not inside or labels[near] or (in_xy and step[0]):
                continue
            labels[near] = labels[voxel]
            heapq.heappush(heap, (-int(depth[near]), arrivals, near))
            arrivals += 1
    return labels


def random_volume(seed: int) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Depths with many ties, and a few scattered seeds."""
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 14, 3))
    depth = generator.integers(0, int(generator.integers(1, 30)), shape).astype(np.int32)
    seeds = np.zeros(shape, np.uint32)
    for label in range(1, 6):
        seeds[tuple(generator.integers(0, n) for n in shape)] = label
    return depth, seeds


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_xy", [False, True])
def test_flood_equals_the_heap_reference(seed: int, in_xy: bool) -> None:
    depth, seeds = random_volume(seed)
    assert np.array_equal(flood(depth, seeds, in_xy), flood_with_a_heap(depth, seeds, in_xy))


@pytest.mark.parametrize("seed", range(12))
def test_flood_equals_mahotas_with_float_distances(seed: int) -> None:
    depth, seeds = random_volume(seed)
    distance = np.sqrt(depth.astype(np.float64))
    wanted = mahotas.cwatershed(distance.max() - distance, seeds.astype(np.int32))
    assert np.array_equal(flood(depth, seeds, in_xy=False), wanted)


@pytest.mark.proves("WSD-03")
def test_sections_without_a_seed_stay_empty_in_xy() -> None:
    seeds = np.zeros((3, 4, 4), np.uint32)
    seeds[1, 2, 2] = 7
    labels = flood(np.ones(seeds.shape, np.int32), seeds, in_xy=True)
    assert (labels[1] == 7).all()
    assert not labels[[0, 2]].any()


def test_inputs_are_not_changed() -> None:
    depth, seeds = random_volume(1)
    before = depth.copy(), seeds.copy()
    flood(depth, seeds, in_xy=False)
    assert np.array_equal(depth, before[0])
    assert np.array_equal(seeds, before[1])
