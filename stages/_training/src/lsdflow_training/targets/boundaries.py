"""Labels of a patch: dense ids, and boundaries grown between neighbours.

Boundaries grow as in gunpowder's GrowBoundary, but in one pass instead of one per label.

A voxel keeps its label if every face neighbour has the same label, is masked out (unknown, so it does not shrink a
label) or is outside the array.  All other voxels become background.  Masked-out voxels keep their label: every loss
ignores them, but they are context for the shape descriptors of their neighbours.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

# An array of numpy or of torch: both are indexed and compared in the same way.
Array = TypeVar("Array", bound=Any)
Labels = npt.NDArray[np.unsignedinteger]


def grow_boundary(labels: Labels, mask: npt.NDArray[np.uint8] | None, steps: int, only_xy: bool) -> Labels:
    """Labels (z,y,x) with `steps` voxels of background grown from each boundary into both labels; a new array.

    mask: same shape, 0 = unknown; None = all known.  only_xy: neighbours in z do not count (anisotropic volumes).
    """
    known = np.ones(labels.shape, bool) if mask is None else mask > 0
    return np.where(becomes_boundary(labels, known, steps, only_xy), 0, labels).astype(labels.dtype)


def becomes_boundary(labels: Array, known: Array, steps: int, only_xy: bool) -> Array:
    """Which known voxels are, or become, background: bool (z, y, x). Arrays of numpy, or tensors on one device."""
    keep: Array = known & (labels > 0)
    for _ in range(steps):
        keep = _erode(labels, keep, known, axes=(1, 2) if only_xy else (0, 1, 2))
    background: Array = known & ~keep
    return background


def _erode(labels: Array, keep: Array, known: Array, axes: tuple[int, ...]) -> Array:
    """One step: a kept voxel stays if each face neighbour is unknown, or kept with the same label."""
    result: Array = keep & known  # all of keep, which is known: a copy
    for axis in axes:
        upper = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
        lower = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
        same = labels[upper] == labels[lower]
        for here, there in ((upper, lower), (lower, upper)):
            stays = result[here]
            stays &= (same & keep[there]) | ~known[there]
    return result


def compact_ids(labels: Labels) -> npt.NDArray[np.uint64]:
    """Labels with ids 1, 2, 3, ... in the order of the old ids; 0 stays 0. Same shape.

    Sorts runs of equal ids, because sorting all voxels would cost more than all augmentation.
    """
    flat = labels.ravel()
    if flat.size == 0:
        return labels.astype(np.uint64)
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    lengths = np.diff(starts, append=flat.size)
    ids, dense = np.unique(flat[starts], return_inverse=True)
    first = 0 if ids[0] == 0 else 1
    return np.repeat((dense + first).astype(np.uint64), lengths).reshape(labels.shape)
