"""The ids in a volume, and dense labels for them. Ids repeat along x: each run of equal voxels is looked at once.

voxels   8 8 8 3 3 0 0 8      run begins   0 3 5 7      ids 3 8      labels   2 2 2 1 1 0 0 2
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


def distinct_ids(fragments: UInt64s) -> UInt64s:
    """The ids of an array, ascending, each once; without 0 (none)."""
    flat = np.ascontiguousarray(fragments).ravel()
    ids = np.unique(flat[_run_begins(flat)])
    return ids[ids > 0]


def dense_labels(fragments: UInt64s) -> tuple[UInt64s, UInt64s]:
    """Replace ids by 0..n in ascending order (0 stays 0).

    :returns: (z, y, x) u64 labels, and (n + 1,) the id of each label.
    """
    flat = np.ascontiguousarray(fragments).ravel()
    begins = _run_begins(flat)
    ids = np.unique(np.append(flat[begins], np.uint64(0)))
    labels = np.searchsorted(ids, flat[begins]).astype(np.uint64)
    return np.repeat(labels, np.diff(begins, append=flat.size)).reshape(fragments.shape), ids


def _run_begins(flat: UInt64s) -> Int64s:
    """Where an id differs from the one before; the first does."""
    begins: Int64s = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    return np.append(np.zeros(min(1, flat.size), np.int64), begins)
