"""Which fragments touch: pairs of labels that share at least one voxel face."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def touching_pairs(labels: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of labels that share a voxel face (6 neighbours); label 0 touches nothing.

    :param labels: (z, y, x), dense: below 2^31.
    :returns: u, v (N,) with u < v, each pair once, ascending by (u, v).
    """
    base = int(labels.max(initial=0)) + 1
    pairs = np.unique(np.concatenate([_face_codes(labels, axis, base) for axis in range(3)]))
    u, v = np.divmod(pairs, base)
    return u, v


def _face_codes(labels: NDArray[np.uint64], axis: int, base: int) -> NDArray[np.int64]:
    """u * base + v of every face along an axis between two different labels."""
    length = labels.shape[axis]
    upper = np.take(labels, range(1, length), axis).ravel()
    lower = np.take(labels, range(length - 1), axis).ravel()
    face = (upper != lower) & (upper > 0) & (lower > 0)
    a, b = upper[face].astype(np.int64), lower[face].astype(np.int64)
    return np.unique(np.minimum(a, b) * base + np.maximum(a, b))
