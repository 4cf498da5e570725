"""Local shape descriptors (LSDs) of a segmentation, as a network that agrees with it would predict them.

The ten channels are those of the training targets (`lsdflow_training.targets`, in another environment; a test compares
them): 0-2 mean offset z, y, x; 3-5 variance zz, yy, xx; 6-8 Pearson coefficients zy, zx, yx; 9 size.

For each label, the Gaussian-weighted moments of its voxels in local coordinates (without cancellation or a grid of
coordinates) are 19 convolutions along one axis, each only in the box of the label:

    mask --z--> g, g d, g d^2 --y--> 6 of order <= 2 --x--> 10: share; z, y, x; zz, yy, xx; zy, zx, yx
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lsdflow_contract.geometry import Box, Nm3, Vox3

CHANNELS = 10
TRUNCATE_SIGMA = 3.0
# An axis with less variance (nm^2) counts as flat; a variance below this share of the squared mean is rounding error.
FLAT_NM2, ROUNDING_SHARE = 1e-3, 1e-5

# Powers of dz, dy, dx of the moments: share; z, y, x; zz, yy, xx; zy, zx, yx.
ORDERS = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 0, 0), (0, 2, 0), (0, 0, 2), (1, 1, 0), (1, 0, 1), (0, 1, 1))

Floats = NDArray[np.float32]
Kernels = Sequence[NDArray[np.float64]]


def radius_vox(sigma_nm: Nm3, voxel_size_nm: Nm3) -> Vox3:
    """The required context of labels around a voxel, in voxels z, y, x."""
    z, y, x = (int(TRUNCATE_SIGMA * s / v + 0.5) for s, v in zip(sigma_nm, voxel_size_nm, strict=True))
    return z, y, x


def descriptors_of(labels: NDArray[np.unsignedinteger], roi: Box, sigma_nm: Nm3, voxel_size_nm: Nm3) -> Floats:
    """LSDs of `roi` (voxels of `labels`), float32 (10, z, y, x) in [0, 1], 0 where the label is 0.

    labels: (z, y, x) with context; voxels outside count as unlabelled.
    """
    out = np.zeros((CHANNELS, *roi.shape_vox), np.float32)
    names, dense = np.unique(labels, return_inverse=True)
    wanted = dense.reshape(labels.shape)[roi.slices()]
    boxes = ndimage.find_objects(dense.reshape(labels.shape) + 1)
    own = ndimage.find_objects(wanted + 1)
    kernels = [kernels_of(s / v) for s, v in zip(sigma_nm, voxel_size_nm, strict=True)]
    for number, (name, box, inside) in enumerate(zip(names.tolist(), boxes, own, strict=False)):
        if name == 0 or inside is None:
            continue
        begin = [part.start + b for part, b in zip(inside, roi.begin_vox, strict=True)]
        shape = [part.stop - part.start for part in inside]
        mask = (dense.reshape(labels.shape)[box] == number).astype(np.float32)
        first = [b - part.start for b, part in zip(begin, box, strict=True)]
        moments = moments_of(mask, kernels, first, shape)
        here = wanted[inside] == number
        out[(slice(None), *inside)][:, here] = channels_of(moments[:, here], sigma_nm, voxel_size_nm)
    return out


def kernels_of(sigma_vox: float) -> NDArray[np.float64]:
    """g, g d and g d^2 of one axis, float64 (3, 2 r + 1), d in voxels; g sums to 1."""
    radius = int(TRUNCATE_SIGMA * sigma_vox + 0.5)
    d = np.arange(-radius, radius + 1, dtype=np.float64)
    gauss = np.exp(-0.5 * (d / sigma_vox) ** 2)
    kernels: NDArray[np.float64] = np.stack([gauss, gauss * d, gauss * d * d]) / gauss.sum()
    return kernels


def moments_of(mask: Floats, kernels: Kernels, first: Sequence[int], shape: Sequence[int]) -> Floats:
    """Moments float32 (10, *shape), as ORDERS, of a label around the voxels that begin at `first` of its mask.

    Voxels outside the mask do not belong to the label. The sum of the moments of two labels is that of both as one.
    """

    def along(axis: int, power: int, values: Floats) -> Floats:
        found: Floats = ndimage.correlate1d(values, kernels[axis][power], axis, mode="constant")
        return found[(slice(None),) * axis + (slice(first[axis], first[axis] + shape[axis]),)]

    z = [along(0, power, mask) for power in range(3)]
    zy = {(a, b): along(1, b, z[a]) for a in range(3) for b in range(3 - a)}
    return np.stack([along(2, c, zy[a, b]) for a, b, c in ORDERS])


def channels_of(moments: Floats, sigma_nm: Nm3, voxel_size_nm: Nm3) -> Floats:
    """The ten channels float32 (10, n) in [0, 1] from the ten moments (10, n), in voxels of each axis; share > 0."""
    share, first, second, mixed = moments[0], moments[1:4], moments[4:7], moments[7:10]
    sigma = [s / v for s, v in zip(sigma_nm, voxel_size_nm, strict=True)]
    flat = [FLAT_NM2 / (v * v) for v in voxel_size_nm]
    mean = first / share
    variance = second / share - mean**2
    variance = np.where(variance > ROUNDING_SHARE * mean**2, variance, 0.0)
    out = np.empty_like(moments)
    for axis in range(3):
        out[axis] = mean[axis] / sigma[axis] * 0.5 + 0.5
        out[3 + axis] = np.maximum(variance[axis], flat[axis]) / sigma[axis] ** 2
    for place, (a, b) in enumerate(((0, 1), (0, 2), (1, 2))):
        covariance = mixed[place] / share - mean[a] * mean[b]
        spread = np.sqrt(np.maximum(variance[a], flat[a]) * np.maximum(variance[b], flat[b]))
        flat_pair = (variance[a] == 0) | (variance[b] == 0)
        out[6 + place] = np.where(flat_pair, 0.5, covariance / spread * 0.5 + 0.5)
    out[9] = share
    return np.clip(out, 0.0, 1.0)
