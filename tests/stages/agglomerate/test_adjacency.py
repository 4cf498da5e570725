"""Touching pairs: every pair of labels that shares a voxel face, once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_agglomerate.scoring import touching_pairs


def pairs_voxel_by_voxel(labels: NDArray[np.uint64]) -> set[tuple[int, int]]:
    """Slow reference."""
    pairs = set()
    for voxel in np.ndindex(labels.shape):
        for axis in range(3):
            if voxel[axis] == 0:
                continue
            near = tuple(v - (a == axis) for a, v in enumerate(voxel))
            a, b = int(labels[voxel]), int(labels[near])
            if a and b and a != b:
                pairs.add((min(a, b), max(a, b)))
    return pairs


@pytest.mark.parametrize("seed", range(5))
def test_pairs_equal_the_slow_reference(seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 30, tuple(generator.integers(1, 9, 3))).astype(np.uint64)
    u, v = touching_pairs(labels)
    found = list(zip(u.tolist(), v.tolist(), strict=True))
    assert found == sorted(pairs_voxel_by_voxel(labels))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 3), (0, 2, 2)])
def test_nothing_touches_in_an_empty_volume(shape: tuple[int, int, int]) -> None:
    u, v = touching_pairs(np.zeros(shape, np.uint64))
    assert u.size == v.size == 0
