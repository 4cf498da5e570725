"""Local shape descriptors (LSDs): auxiliary training targets that describe the shape of the neuron around each voxel.

For each voxel of a label, in a Gaussian window: mean offset to the label's voxels, their variance and correlation, and
their share of the window (semantics of Sheridan et al. 2023 and of the package lsds 0.1.3, truncated at 3 sigma).

`local_shape_descriptors` is the one interface. Where the labels are decides what computes them: arrays in main memory
lsd_cpu (numba, exact, one thread), tensors lsd_torch (on their device). Both give the same values; tests compare them
with each other and with lsds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import ConfigError, UsageError
from lsdflow_contract.geometry import Box, Nm3, Vox3

if TYPE_CHECKING:
    from torch import Tensor

Engine = Literal["lsdflow", "lsds"]
Labels = npt.NDArray[np.unsignedinteger]
CHANNELS = 10
TRUNCATE_SIGMA = 3.0


@overload
def local_shape_descriptors(
    labels: Labels,
    sigma_nm: float | Nm3,
    voxel_size_nm: Nm3,
    roi: Box | None = None,
    downsample: int = 1,
    engine: Engine = "lsdflow",
) -> npt.NDArray[np.float32]:
    """LSDs of an array, in main memory."""


@overload
def local_shape_descriptors(
    labels: Tensor, sigma_nm: float | Nm3, voxel_size_nm: Nm3, roi: Box | None = None, downsample: int = 1
) -> Tensor:
    """LSDs of a tensor, on its device."""


def local_shape_descriptors(
    labels: Labels | Tensor,
    sigma_nm: float | Nm3,
    voxel_size_nm: Nm3,
    roi: Box | None = None,
    downsample: int = 1,
    engine: Engine = "lsdflow",
) -> npt.NDArray[np.float32] | Tensor:
    """The LSD targets of `roi` (default: all of `labels`), float32 (10, z, y, x) in [0, 1], 0 where the label is 0.

    labels: unsigned integers (z, y, x) including context; voxels outside count as no label. A tensor, or a batch of
    them (b, z, y, x), is described on its device. sigma_nm: standard deviation of the Gaussian, one for all axes or z,
    y, x. voxel_size_nm: z, y, x, may be fractions. roi: voxels of `labels`. downsample: compute moments from every n-th
    voxel only, as in the published models; begin and shape of roi must be multiples of it. engine: "lsds" computes
    arrays with the package of that name (about 500 times slower; voxel sizes in whole nm only).

    Channels: 0-2 mean offset z, y, x; 3-5 variance zz, yy, xx; 6-8 Pearson coefficients zy, zx, yx; 9 size.

    Raises BadData if labels are not a volume of unsigned integers, UsageError if roi or the numbers are invalid.
    """
    if not isinstance(labels, np.ndarray):
        from lsdflow_training.targets.lsd_torch import lsd_targets_torch

        return lsd_targets_torch(labels, sigma_nm, voxel_size_nm, roi, downsample)
    if engine == "lsds":
        return _lsds_package(labels, per_axis(sigma_nm), voxel_size_nm, roi, downsample)
    from lsdflow_training.targets.lsd_cpu import lsd_targets_cpu

    return lsd_targets_cpu(labels, sigma_nm, voxel_size_nm, roi, downsample)


def context_vox(sigma_nm: float | Nm3, voxel_size_nm: Nm3, downsample: int = 1) -> Vox3:
    """Voxels of labels needed on each side of the output so that its descriptors do not depend on the crop."""
    sigma = per_axis(sigma_nm)
    radii = [int(TRUNCATE_SIGMA * s / (v * downsample) + 0.5) for s, v in zip(sigma, voxel_size_nm, strict=True)]
    z, y, x = (radius * downsample for radius in radii)
    return z, y, x


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


def check_engine(engine: str, voxel_size_nm: Nm3) -> None:
    """Raise ConfigError for an engine that is unknown, not installed, or does not support the voxel size."""
    if engine not in get_args(Engine):
        raise ConfigError("no such engine for LSD targets", wanted=" or ".join(get_args(Engine)), found=engine)
    if engine == "lsds":
        _lsds_function()
        if any(size != round(size) for size in voxel_size_nm):
            raise ConfigError(
                'engine "lsds" cuts voxel sizes to whole numbers',
                wanted="whole nm",
                found=voxel_size_nm,
                fix='use engine "lsdflow"',
            )


def _lsds_package(
    labels: Labels, sigma_nm: Nm3, voxel_size_nm: Nm3, roi: Box | None, downsample: int
) -> npt.NDArray[np.float32]:
    import gunpowder as gp

    box = checked_roi(roi, labels.shape, downsample)
    descriptors: npt.NDArray[np.float32] = _lsds_function()(
        labels,
        sigma=sigma_nm,
        voxel_size=tuple(round(size) for size in voxel_size_nm),
        roi=gp.Roi(box.begin_vox, box.shape_vox),
        downsample=downsample,
    )
    return descriptors


def _lsds_function() -> Any:
    try:
        from lsd.train.local_shape_descriptor import get_local_shape_descriptors
    except ImportError as error:
        raise ConfigError(
            'engine "lsds" needs the package lsds, which is not installed', fix='use engine "lsdflow" (same values)'
        ) from error
    return get_local_shape_descriptors
