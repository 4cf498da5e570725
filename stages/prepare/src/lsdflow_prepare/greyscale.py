"""Conversion of raw grey values of any type to the 8-bit values that networks read.

uint8               unchanged
float in [0, 1]     round(255 * value), so k / 255 becomes k
anything else       only with a range given by the user: its first value -> 0, its second -> 255, clipped outside;
                    the larger one first inverts the contrast
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3

Range = tuple[float, float]
MAX_TABLE_BITS = 16


class Grey(NamedTuple):
    """8-bit values, and the number of voxels outside the range."""

    values: NDArray[np.uint8]
    clipped: int


class NonFinite(NamedTuple):
    """NaN and infinite values of a block: their number, and the index z,y,x of the first."""

    voxels: int
    first: Vox3


def to_u8(raw: NDArray[Any], raw_range: Range | None, where: str, counted: tuple[slice, ...] = ()) -> Grey:
    """A block of raw (z,y,x; any real type) as uint8 0-255. counted: where voxels outside the range are counted.

    Raises:
        BadData: not real numbers, NaN or infinite values, or a range is required and not given.
    """
    refuse_type(raw.dtype, where)
    if raw.dtype == np.uint8 and raw_range is None:
        return Grey(raw.view(np.uint8), 0)
    refuse_non_finite(raw, where)
    if raw_range is None:
        refuse_unknown_range(raw.dtype, float(raw.min()), float(raw.max()), where)
        return Grey(np.rint(raw.astype(np.float64) * 255).astype(np.uint8), 0)
    low, high = sorted(raw_range)
    clipped = int(np.count_nonzero((raw[counted] < low) | (raw[counted] > high)))
    return Grey(_stretch(raw, *raw_range), clipped)


def _stretch(raw: NDArray[Any], black: float, white: float) -> NDArray[np.uint8]:
    """Linear map of black to 0 and white to 255; small unsigned types use a lookup table."""
    if raw.dtype.kind == "u" and raw.dtype.itemsize * 8 <= MAX_TABLE_BITS:
        levels = np.arange(np.iinfo(raw.dtype).max + 1, dtype=np.float64)
        table = _linear(levels, black, white)
        return np.asarray(table[raw])
    return _linear(raw.astype(np.float64), black, white)


def _linear(values: NDArray[np.float64], black: float, white: float) -> NDArray[np.uint8]:
    return np.rint(np.clip((values - black) / (white - black), 0, 1) * 255).astype(np.uint8)


def refuse_type(dtype: np.dtype[np.generic], where: str) -> None:
    """Raise BadData if raw does not consist of real numbers."""
    if dtype.kind not in "uif":
        raise BadData(
            "raw is not grey values", where=where, wanted="uint8, another integer or a float type", found=dtype
        )


def refuse_unknown_range(dtype: np.dtype[np.generic], low: float, high: float, where: str, sampled: str = "") -> None:
    """Raise BadData if a range is required: only uint8 and floats within [0, 1] have a known black and white."""
    if dtype == np.uint8 or (dtype.kind == "f" and low >= 0 and high <= 1):
        return
    raise BadData(
        f"raw is {dtype}: which values are black and white is not known",
        where=where,
        wanted="uint8, or float in [0, 1], or a range",
        found=f"{dtype}, {sampled}minimum {low:g}, maximum {high:g}",
        fix=f"give the range: raw_range = [{low:.15g}, {high:.15g}]"
        if low < high
        else "all of it has one value: check the file and raw_dataset; if right, raw_range = [MIN, MAX] of its type",
    )


def non_finite(raw: NDArray[Any]) -> NonFinite | None:
    """NaN and infinite values of a block, None if there are none."""
    if raw.dtype.kind != "f":
        return None
    wrong = ~np.isfinite(raw)
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    z, y, x = (int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return NonFinite(count, (z, y, x))


def refuse_non_finite(raw: NDArray[Any], where: str) -> None:
    """Raise BadData naming the count and the first voxel of NaN and infinite values."""
    found = non_finite(raw)
    if found is not None:
        raise BadData(
            "raw holds NaN or infinite values",
            where=where,
            wanted="finite grey values",
            found=f"{found.voxels} voxels, the first at z,y,x = {found.first} of this block",
            fix="repair the volume, or leave the region out with roi",
        )
