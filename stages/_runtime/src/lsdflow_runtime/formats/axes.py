"""From the axis order of a file to [c,] z,y,x.

A stored array has axes named by one letter each ("tczyx", "xyz", "xyzc"); the reader of a box asks for z,y,x:

    stored "xyzc"  --slices-->  piece "xyzc"  --transpose-->  "czyx"  --drop c if there is one only-->  "zyx"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3

SPACE = "zyx"


def parse_axes(names: Sequence[object] | None, ndim: int, default: str, where: str) -> str:
    """One letter per stored axis, from names like ["c^", "z", "y", "x"]; `default` when the names say nothing.

    Raises:
        BadData: the names do not hold z, y and x once each, or are not as many as the axes.
    """
    letters = "".join(str(name).strip().lower().rstrip("^")[:1] for name in names or ())
    known = [str(name).strip().lower().rstrip("^") for name in names or ()]
    if not names or not set(known) <= {"t", "c", "z", "y", "x", "time", "channel"}:
        letters = default[-ndim:] if default.endswith(SPACE) else default[:ndim]
    check_axes(letters, ndim, where)
    return letters


def check_axes(letters: str, ndim: int, where: str) -> None:
    """Refuse axes that are not z, y, x and at most one t and one c."""
    if len(letters) != ndim or len(set(letters)) != len(letters) or not set(SPACE) <= set(letters):
        raise BadData(
            "the axes of the volume are not z, y, x",
            where=where,
            wanted="3 axes (z,y,x), or 4-5 with one channel axis c and one time axis t",
            found=f"{ndim} axes named {letters!r}",
            hint="name another dataset, or correct the axis names in its metadata",
        )


def spatial(values: Sequence[object], axes: str, where: str, what: str) -> list[Any]:
    """The z,y,x entries of a list that follows the stored axes (all of them, or the spatial ones only)."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        values = [values]
    order = axes if len(values) == len(axes) else "".join(letter for letter in axes if letter in SPACE)
    if len(values) != len(order):
        raise BadData(f"{what} has {len(values)} entries", where=where, wanted=f"3, or {len(axes)}", found=repr(values))
    return [values[order.index(letter)] for letter in SPACE]


def shape_zyx(stored_shape: Sequence[int], axes: str) -> Vox3:
    """Number of voxels along z, y, x."""
    z, y, x = (int(stored_shape[axes.index(letter)]) for letter in SPACE)
    return (z, y, x)


def channels_of(stored_shape: Sequence[int], axes: str) -> int | None:
    """Number of channels; None for a volume without, or with a single one."""
    count = int(stored_shape[axes.index("c")]) if "c" in axes else 1
    return count if count > 1 else None


def refuse_time_series(stored_shape: Sequence[int], axes: str, where: str) -> None:
    """A time axis is read only when it has one point."""
    if "t" in axes and stored_shape[axes.index("t")] != 1:
        raise BadData(
            "the volume is a time series",
            where=where,
            wanted="one time point",
            found=f"{stored_shape[axes.index('t')]} time points",
            hint="write the time point you want to a file of its own",
        )


def stored_slices(box: Box, stored_shape: Sequence[int], axes: str) -> tuple[slice, ...]:
    """Slices along the stored axes that cover `box`, all channels, the only time point."""
    spans = dict(zip(SPACE, zip(box.begin_vox, box.end_vox, strict=True), strict=True))
    spans |= {letter: (0, stored_shape[axes.index(letter)]) for letter in axes if letter not in SPACE}
    return tuple(slice(*spans[letter]) for letter in axes)


def to_zyx(piece: NDArray[np.generic], axes: str) -> NDArray[np.generic]:
    """A stored piece as (c, z, y, x), or (z, y, x) without or with a single channel; C-contiguous."""
    wanted = "".join(letter for letter in "tc" if letter in axes) + SPACE
    turned = piece.transpose([axes.index(letter) for letter in wanted])
    if "t" in axes:
        turned = turned[0]
    if "c" in axes and turned.shape[0] == 1:
        turned = turned[0]
    return np.ascontiguousarray(turned)
