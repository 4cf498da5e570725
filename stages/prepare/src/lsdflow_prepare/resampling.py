"""Another voxel size: whole multiples of the source voxels (coarser) or whole fractions of them (finer), axis by axis.

Both grids begin at the same corner, so the offset of a volume (the corner of its first voxel) stays as it is.

coarser by 2   source    |  0  |  1  |  2  |  3  |    grey: the mean of the cell
               output    |     0     |     1     |    labels, mask: voxel f // 2 of the cell: 1, 3

finer by 2     source    |     0     |     1     |    grey: linear between the centres (x): output 1 is 3/4 of source 0
               centres         x           x          and 1/4 of source 1; beyond the last centre, the last voxel
               output    |  0  |  1  |  2  |  3  |    labels, mask: the source voxel around it: 0, 0, 1, 1

Grey values are sums of whole numbers that are divided and rounded once (halves up), so they are exact, and the same
for every division into blocks. All boxes here begin at the first voxel of the region that is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Nm3, Vox3

MOST_TIMES = 100
TOLERANCE = 1e-6


class Factors(NamedTuple):
    """How many source voxels are in one output voxel (`coarser`), or the reverse (`finer`); along an axis, one is 1."""

    coarser: Vox3 = (1, 1, 1)
    finer: Vox3 = (1, 1, 1)

    @property
    def neighbours_vox(self) -> Vox3:
        """How many voxels around its own ones are read for grey values: 1 along axes that are interpolated."""
        z, y, x = (int(times > 1) for times in self.finer)
        return z, y, x

    def output_shape(self, shape_vox: Vox3) -> Vox3:
        """Shape in output voxels of a shape in source voxels; an incomplete cell counts."""
        return _rounded_up(shape_vox, self.finer, self.coarser)

    def whole_cells(self, box: Box) -> Box:
        """`box` (source voxels) without the incomplete cells at its far end."""
        z, y, x = (n // c * c for n, c in zip(box.shape_vox, self.coarser, strict=True))
        return Box(box.begin_vox, (z, y, x))

    def cells(self, box: Box) -> Box:
        """The source voxels in which the output voxels `box` lie."""
        z, y, x = (b * c // f for b, c, f in zip(box.begin_vox, self.coarser, self.finer, strict=True))
        return Box.from_bounds((z, y, x), _rounded_up(box.end_vox, self.coarser, self.finer))

    def own(self, box: Box) -> Box:
        """The source voxels that begin in the output voxels `box`, so that each belongs to one block only."""
        begin, end = (_rounded_up(corner, self.coarser, self.finer) for corner in (box.begin_vox, box.end_vox))
        return Box.from_bounds(begin, end)


SAME_VOXELS = Factors()


def factors_to(voxel_size_nm: Nm3, wanted_nm: Nm3, field: str, where: object) -> Factors:
    """The factors from a voxel size to the one wanted by config key `field`, nm.

    Raises:
        ConfigError: along an axis, neither is a whole multiple of the other (to 1e-6), or more than 100 times as large.
    """
    ratios = [wanted / size for wanted, size in zip(wanted_nm, voxel_size_nm, strict=True)]
    coarser, finer = (
        [round(min(max(times, 1), MOST_TIMES)) for times in given]
        for given in (ratios, [1 / max(ratio, TOLERANCE) for ratio in ratios])
    )
    fits = [c / f for c, f in zip(coarser, finer, strict=True)]
    if not all(math.isclose(ratio, fit, rel_tol=TOLERANCE) for ratio, fit in zip(ratios, fits, strict=True)):
        nearest = ", ".join(f"{fit * size:.15g}" for fit, size in zip(fits, voxel_size_nm, strict=True))
        raise ConfigError(
            f"{field} is neither whole multiples nor whole fractions of the voxel size",
            where=where,
            wanted=f"along each axis n or 1/n times {_text(voxel_size_nm)} nm, n = 1 ... {MOST_TIMES}",
            found=f"{_text(wanted_nm)} nm = {_text(ratios)} times",
            fix=f'nearest that fits: resample_to = "{nearest} nm"',
        )
    return Factors(_vox3(coarser), _vox3(finer))


def resampled_grey(values: NDArray[np.uint8], first: Vox3, box: Box, factors: Factors) -> NDArray[np.uint8]:
    """Grey values of the output voxels `box`: means of cells, or linear interpolation between voxel centres.

    values   u8 (z, y, x), source voxels from voxel `first` on: `factors.cells(box)`, and `neighbours_vox` more around
             them as far as the region goes; at its faces, the outermost voxels continue

    Returns u8 of the shape of `box`.
    """
    divisor = math.prod(factors.coarser) * math.prod(2 * f for f in factors.finer if f > 1)
    if divisor == 1:
        return values
    sums: NDArray[Any] = values.astype(np.min_scalar_type(256 * divisor))
    for axis, (coarser, finer) in enumerate(zip(*factors, strict=True)):
        if coarser > 1:
            sums = _sums_of_cells(sums, axis, coarser)
        if finer > 1:
            sums = _interpolated(sums, axis, finer, box.begin_vox[axis], box.shape_vox[axis], first[axis])
    sums += divisor // 2
    sums //= divisor
    return sums.astype(np.uint8)


def resampled_ids(values: NDArray[Any], first: Vox3, box: Box, factors: Factors) -> NDArray[Any]:
    """Ids or mask states of the output voxels `box`: one source voxel each, never a new value.

    values   any type (z, y, x): the source voxels `factors.cells(box)`, of which the first is `first`
    """
    if factors == SAME_VOXELS:
        return values
    axes = zip(box.begin_vox, box.end_vox, first, *factors, strict=True)
    return values[np.ix_(*(np.arange(b, e) * c // f + c // 2 - begin for b, e, begin, c, f in axes))]


def _sums_of_cells(values: NDArray[Any], axis: int, count: int) -> NDArray[Any]:
    """Sums of every `count` voxels along an axis."""
    along = np.moveaxis(values, axis, 0)
    return np.moveaxis(sum((along[i::count] for i in range(1, count)), along[::count]), 0, axis)


def _interpolated(values: NDArray[Any], axis: int, finer: int, begin: int, count: int, first: int) -> NDArray[Any]:
    """`count` voxels along an axis, from output voxel `begin` on, times 2 * finer; voxel 0 of values is `first`.

    The centre of output voxel o is (2 o + 1 - finer) / (2 finer) source voxels after the centre of source voxel 0.
    """
    left, part = np.divmod(2 * np.arange(begin, begin + count) + 1 - finer, 2 * finer)
    part = part.astype(values.dtype).reshape(-1, *(1,) * (2 - axis))
    below, above = (np.take(values, left + step - first, axis, mode="clip") for step in (0, 1))
    below *= 2 * finer - part
    above *= part
    below += above
    return below


def _rounded_up(voxels: Vox3, times: Vox3, parts: Vox3) -> Vox3:
    return _vox3([-(-voxel * t // p) for voxel, t, p in zip(voxels, times, parts, strict=True)])


def _vox3(values: Sequence[int]) -> Vox3:
    z, y, x = values
    return z, y, x


def _text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
