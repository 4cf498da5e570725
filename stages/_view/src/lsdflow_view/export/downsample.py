"""Binning: a coarser level from a finer one. Mean of intensities, mode (most frequent label) of labels.

Bins of `factor` voxels per axis (1 or 2); arrays are ([c,] z, y, x) and hold whole bins: see `whole_bins`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Vox3

Reduction = Callable[[npt.NDArray[Any], Vox3], npt.NDArray[Any]]


def whole_bins(values: npt.NDArray[Any], lower_vox: Vox3, upper_vox: Vox3) -> npt.NDArray[Any]:
    """Complete bins that a face of the volume cuts, by repeating the face: `lower_vox` voxels below, `upper_vox` above.

    A bin of a plane and its copy has the mean and the mode of that plane.
    """
    if not any((*lower_vox, *upper_vox)):
        return values
    leading = ((0, 0),) * (values.ndim - 3)
    return np.pad(values, (*leading, *zip(lower_vox, upper_vox, strict=True)), mode="edge")


def mean_of_bins(values: npt.NDArray[Any], factor: Vox3) -> npt.NDArray[Any]:
    """Mean of each bin, with the dtype of `values`; integers are rounded to the nearest, halves up."""
    members = _members(values, factor)
    if np.issubdtype(values.dtype, np.floating):
        return np.mean(members, axis=0, dtype=np.float64).astype(values.dtype)
    total = np.zeros(members[0].shape, np.int64)
    for member in members:
        total += member
    # floor((2 sum + n) / 2n) = mean + 1/2, rounded down: exact in integers, for negative ones as well
    return ((2 * total + len(members)) // (2 * len(members))).astype(values.dtype)


def mode_of_bins(labels: npt.NDArray[Any], factor: Vox3) -> npt.NDArray[Any]:
    """The most frequent label of each bin (background counts as a label); the lowest of equally frequent labels."""
    members = _members(labels, factor)
    counts = [np.ones(members[0].shape, np.uint8) for _ in members]
    for (a, first), (b, second) in itertools.combinations(enumerate(members), 2):
        same = first == second
        counts[a] += same
        counts[b] += same
    best, most = members[0].copy(), counts[0]
    for member, count in zip(members[1:], counts[1:], strict=True):
        better = (count > most) | ((count == most) & (member < best))
        np.copyto(best, member, where=better)
        most = np.maximum(most, count)
    return best


def _members(values: npt.NDArray[Any], factor: Vox3) -> list[npt.NDArray[Any]]:
    """The first voxel of every bin, the second of every bin, and so on."""
    every = [[slice(start, None, f) for start in range(f)] for f in factor]
    return [values[..., z, y, x] for z, y, x in itertools.product(*every)]
