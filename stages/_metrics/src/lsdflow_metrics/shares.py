"""The share of each truth object in the VOI split, and of each segment in the VOI merge.

split share of truth object j = -sum over segments i of p_ij/n log2(p_ij / t_j)     their sum is the VOI split
merge share of segment i      = -sum over objects  j of p_ij/n log2(p_ij / s_i)     their sum is the VOI merge
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_metrics.contingency import Contingency
from lsdflow_metrics.scores import ZeroPolicy


@dataclass(frozen=True, eq=False)
class Shares:
    """`ids` uint64 (n,) ascending, the number of their counted `voxels` int64 (n,), and shares float64 (n,) in bits."""

    ids: NDArray[np.uint64]
    voxels: NDArray[np.int64]
    bits: NDArray[np.float64]


def split_shares(table: Contingency, zeros: ZeroPolicy = "label") -> Shares:
    """The share of every truth object in the VOI split; `zeros` as in `score`."""
    counted = table.voxels if zeros != "ignore" else np.where(table.labels == 0, 0, table.voxels)
    alone = (table.labels == 0) & (zeros == "singletons")
    return _shares(table.truths, counted, alone, int(counted.sum()))


def merge_shares(table: Contingency, zeros: ZeroPolicy = "label") -> Shares:
    """The share of every segment in the VOI merge; `zeros` as in `score`; 0 is a segment only with "label"."""
    kept = np.ones(len(table.labels), np.bool_) if zeros == "label" else table.labels != 0
    total = table.total_vox if zeros != "ignore" else int(table.voxels[kept].sum())
    return _shares(table.labels[kept], table.voxels[kept], np.zeros(int(kept.sum()), np.bool_), total)


def _shares(owners: NDArray[np.uint64], voxels: NDArray[np.int64], alone: NDArray[np.bool_], total: int) -> Shares:
    """Shares of the owners of the pairs; each voxel of a pair that is `alone` is a separate part."""
    ids, owner = np.unique(owners, return_inverse=True)
    sizes = np.zeros(len(ids), np.int64)
    np.add.at(sizes, owner, voxels)
    part = np.where(alone, 1, voxels).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(voxels > 0, -voxels * np.log2(part / sizes[owner]), 0.0)
    bits = np.bincount(owner, weights=terms, minlength=len(ids)) / max(total, 1)
    return Shares(ids, sizes, np.maximum(bits, 0.0))
