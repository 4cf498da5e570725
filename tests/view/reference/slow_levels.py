"""Coarser levels by a loop over bins: slow, and obviously what is meant."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np


def slow_mode(members: np.ndarray) -> int:
    """Most frequent; of equals the lowest."""
    counts = Counter(members.ravel().tolist())
    return min(counts, key=lambda label: (-counts[label], label))


def slow_mean(members: np.ndarray) -> int:
    """Rounded to the nearest, halves up."""
    return int(np.floor(members.astype(np.float64).mean() + 0.5))


def slow_level(values: np.ndarray, begin: tuple, step: tuple, slow: Callable[[np.ndarray], int]) -> np.ndarray:
    """The next level of values whose first voxel is `begin`: bin b holds voxels step * b to step * (b + 1) - 1."""
    ranges = [range(b // s, -(-(b + n) // s)) for b, n, s in zip(begin, values.shape[-3:], step, strict=True)]
    made = np.zeros([len(r) for r in ranges], values.dtype)
    for index in itertools.product(*ranges):
        bounds = [(max(i * s - b, 0), (i + 1) * s - b) for i, s, b in zip(index, step, begin, strict=True)]
        members = values[tuple(slice(low, high) for low, high in bounds)]
        made[tuple(i - r.start for i, r in zip(index, ranges, strict=True))] = slow(members)
    return made
