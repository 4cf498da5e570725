"""Local shape descriptors (LSDs): auxiliary training targets that describe the shape of the neuron around each voxel.

For each voxel of a label, in a Gaussian window: mean offset to the label's voxels, their variance and correlation, and
their share of the window (semantics of Sheridan et al. 2023 and of the package lsds 0.1.3, truncated at 3 sigma).
Computed exactly, in one thread, and each label only where it is present:

  1. list the runs of the labels that occur in the output (label_runs)
  2. for each label, sums of the Gaussian-weighted offsets by three passes of 1-D convolutions (label_moments)
  3. sums to channels, at the label's voxels only (label_descriptors)
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData, UsageError
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_training.targets.label_descriptors import Grid, describe
from lsdflow_training.targets.label_moments import kernels, running_sums
from lsdflow_training.targets.label_runs import Labels, present_labels, runs_by_y, runs_by_z

CHANNELS = 10
TRUNCATE_SIGMA = 3.0


def context_vox(sigma_nm: float | Nm3, voxel_size_nm: Nm3, downsample: int = 1) -> Vox3:
    """Voxels of labels needed on each side of the output so that its descriptors do not depend on the crop."""
    sigma = per_axis(sigma_nm)
    radii = [int(TRUNCATE_SIGMA * s / (v * downsample) + 0.5) for s, v in zip(sigma, voxel_size_nm, strict=True)]
    z, y, x = (radius * downsample for radius in radii)
    return z, y, x


def local_shape_descriptors(
    labels: npt.NDArray[np.unsignedinteger],
    sigma_nm: float | Nm3,
    voxel_size_nm: Nm3,
    roi: Box | None = None,
    downsample: int = 1,
) -> npt.NDArray[np.float32]:
    """The LSD targets of `roi` (default: all of `labels`), float32 (10, z, y, x) in [0, 1], 0 where the label is 0.

    labels: unsigned integers (z, y, x) including context; voxels outside count as no label. sigma_nm: standard
    deviation of the Gaussian, one for all axes or z, y, x. voxel_size_nm: z, y, x, may be fractions. roi: voxels of
    `labels`. downsample: compute moments from every n-th voxel only, as in the published models; begin and shape of
    roi must be multiples of it.

    Channels: 0-2 mean offset z, y, x; 3-5 variance zz, yy, xx; 6-8 Pearson coefficients zy, zx, yx; 9 size.

    Raises BadData if labels are not a volume of unsigned integers, UsageError if roi or the numbers are invalid.
    """
    volume = _checked_labels(labels)
    sigma, voxel_size = positive(per_axis(sigma_nm), "sigma_nm"), positive(voxel_size_nm, "voxel_size_nm")
    box = checked_roi(roi, volume.shape, downsample)
    out = np.zeros((CHANNELS, *box.shape_vox), dtype=np.float32)
    wanted = _plain(volume[box.slices()])
    ids = present_labels(wanted)
    if ids.size == 0:
        return out
    sources = runs_by_y(_plain(volume[::downsample, ::downsample, ::downsample]), ids)
    targets = runs_by_z(wanted, ids, downsample)
    describe(sources, targets, _grid(sigma, voxel_size, box, downsample), out)
    return out


def warm_up() -> None:
    """Compile everything now (takes seconds), so that forked worker processes inherit the result."""
    local_shape_descriptors(np.ones((2, 2, 2), dtype=np.uint64), 1.0, (1.0, 1.0, 1.0))


def _grid(sigma_nm: Nm3, voxel_size_nm: Nm3, roi: Box, downsample: int) -> Grid:
    coarse_nm = [size * downsample for size in voxel_size_nm]
    z, y, x = (sigma / size for sigma, size in zip(sigma_nm, coarse_nm, strict=True))
    return Grid(
        step=downsample,
        begin=np.array([begin // downsample for begin in roi.begin_vox], dtype=np.int64),
        kernel_z=kernels(z),
        kernel_y=kernels(y),
        sums_x=running_sums(x),
        voxel_size_nm=np.array(coarse_nm, dtype=np.float32),
        sigma_nm=np.array(sigma_nm, dtype=np.float32),
    )


def per_axis(sigma_nm: float | Nm3) -> Nm3:
    """Sigma along z, y, x."""
    if isinstance(sigma_nm, (int, float)):
        return (float(sigma_nm),) * 3
    return sigma_nm


def positive(values: Nm3, name: str) -> Nm3:
    """The same three numbers. Raises UsageError if they are not three, finite and positive."""
    if len(values) != 3 or not all(math.isfinite(v) and v > 0 for v in values):
        raise UsageError(f"{name} must be positive", wanted="3 numbers > 0, z, y, x", found=values)
    return values


def _checked_labels(labels: npt.NDArray[np.unsignedinteger]) -> Labels:
    if labels.ndim != 3 or labels.dtype.kind != "u":
        raise BadData(
            "labels must be a volume of unsigned integers",
            wanted="unsigned, (z, y, x)",
            found=f"{labels.dtype} {labels.shape}",
        )
    return labels.astype(np.uint64, copy=False)


def _plain(labels: Labels) -> Labels:
    """A contiguous and writable array: numba would compile again for other kinds."""
    return np.require(labels, requirements=["C", "W"])


def checked_roi(roi: Box | None, shape: tuple[int, ...], downsample: int) -> Box:
    """The roi (None: all) of labels of this shape. Raises UsageError if roi or downsample is invalid."""
    z, y, x = shape
    whole = Box((0, 0, 0), (z, y, x))
    box = whole if roi is None else roi
    if not whole.contains(box) or box.is_empty:
        raise UsageError("roi must lie within the labels and hold voxels", wanted=f"within {whole}", found=box)
    if downsample < 1 or any(n % downsample for n in (*box.begin_vox, *box.shape_vox)):
        raise UsageError(
            "downsample must divide begin and shape of roi", wanted=f"multiples of {downsample}", found=box
        )
    return box
