"""Shape arithmetic of the valid-convolution U-Net: valid input shapes and their output shapes.

Every convolution is "valid" (no padding), so each 3^3 convolution removes one voxel per side. The output is the centre
of the input, smaller by a constant per axis, the *context* (104 voxels for the published network).  A level with two
convolutions removes e = 4 voxels (for other kernels, e depends on the kernels of the level):

    |<----------------------- input ----------------------->|
    |<- context/2 ->|<----------- output ----------->|<- context/2 ->|

Down (level l to l + 1): convolutions (-e), then max pooling by f_l: the size must be a multiple of f_l here.
Up: the size times f_l, the skip connection cropped to it, convolutions (-e).

Translation.  Pooling windows start at the first input voxel, so shifting the input by one voxel changes which voxels
are pooled together.  Shifting by a multiple of the *tile step* (the product of the factors, 12 for the published
network) does not. If the begins of two inputs differ by multiples of `tile_step_vox`, the values are the same where
their outputs overlap, even if the two have different (valid) shapes.  Predict places its tiles on that grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Vox3


class HasFactors(Protocol):
    """The part of a network specification for shape arithmetic; lsdflow_contract.checkpoint.UNetSpec has it."""

    @property
    def downsample_factors(self) -> tuple[Vox3, ...]:
        """Pooling factors z,y,x per level, from the finest level down."""

    def kernels_before(self, level: int) -> tuple[Vox3, ...]:
        """Kernels z,y,x of the convolutions of a level on the way down; odd."""

    def kernels_after(self, level: int) -> tuple[Vox3, ...]:
        """Kernels z,y,x of the convolutions of a level on the way up; odd."""


def tile_step_vox(spec: HasFactors) -> Vox3:
    """The grid (z,y,x) on which tiles must begin in order to agree: the total downsampling factor."""
    z, y, x = (math.prod(f[axis] for f in spec.downsample_factors) for axis in range(3))
    return z, y, x


def context_vox(spec: HasFactors) -> Vox3:
    """Input shape minus output shape, in voxels per axis; the same for every valid input. Always even."""
    z, y, x = (_axis(spec, axis).context() for axis in range(3))
    return z, y, x


def output_shape_vox(spec: HasFactors, input_shape_vox: Vox3) -> Vox3:
    """Output shape of the network for one input shape, voxels z,y,x.

    Raises ConfigError naming the nearest valid shapes below and above if the input shape is not valid.
    """
    z, y, x = (_axis(spec, axis).output(size) for axis, size in enumerate(input_shape_vox))
    if z is None or y is None or x is None:
        below, above = nearest_valid_input_shapes(spec, input_shape_vox)
        raise ConfigError(
            "the network cannot take this input shape: it is too small, or not divisible at a pooling level",
            where=f"downsample_factors {[list(f) for f in spec.downsample_factors]}",
            wanted=f"{list(below) if below else 'nothing smaller is possible'} or {list(above)} vox",
            found=f"{list(input_shape_vox)} vox",
            fix=f"valid sizes go in steps of {list(tile_step_vox(spec))} vox",
        )
    return z, y, x


def is_valid_input(spec: HasFactors, input_shape_vox: Vox3) -> bool:
    """True if this input shape (voxels z,y,x) is valid for the network."""
    return all(_axis(spec, axis).output(size) is not None for axis, size in enumerate(input_shape_vox))


def smallest_input_shape_vox(spec: HasFactors) -> Vox3:
    """The smallest input shape with a non-empty output, voxels z,y,x."""
    z, y, x = (_axis(spec, axis).next_valid(1) for axis in range(3))
    return z, y, x


def nearest_valid_input_shapes(spec: HasFactors, wanted_vox: Vox3) -> tuple[Vox3 | None, Vox3]:
    """The valid shapes nearest to the wanted one: (each axis at or below, each axis at or above).

    The first is None if an axis has no valid size at or below.
    """
    z, y, x = (_axis(spec, axis).next_valid(size) for axis, size in enumerate(wanted_vox))
    pairs = zip(wanted_vox, (z, y, x), tile_step_vox(spec), strict=True)
    below = [upper if upper == wanted else upper - step for wanted, upper, step in pairs]
    shape = (below[0], below[1], below[2])
    return (shape if is_valid_input(spec, shape) else None), (z, y, x)


def input_shape_for_output(spec: HasFactors, output_vox: Vox3) -> Vox3:
    """The smallest valid input whose output covers the wanted output shape, voxels z,y,x."""
    context = context_vox(spec)
    wanted = (output_vox[0] + context[0], output_vox[1] + context[1], output_vox[2] + context[2])
    return nearest_valid_input_shapes(spec, wanted)[1]


@dataclass(frozen=True)
class _Axis:
    """The arithmetic along one axis, from the finest level down: pooling factors, voxels removed going down and up."""

    factors: tuple[int, ...]
    eaten_down_vox: tuple[int, ...]
    eaten_up_vox: tuple[int, ...]

    def context(self) -> int:
        """Input minus output."""
        if not self.factors:
            return self.eaten_down_vox[0]
        return self.eaten_down_vox[0] + self.eaten_up_vox[0] + self.factors[0] * self._inner().context()

    def output(self, size: int) -> int | None:
        """Output size; None if the input size is not valid."""
        size -= self.eaten_down_vox[0]
        if not self.factors or size < 1:
            return size if size >= 1 else None
        inner = None if size % self.factors[0] else self._inner().output(size // self.factors[0])
        if inner is None or inner * self.factors[0] <= self.eaten_up_vox[0]:
            return None
        return inner * self.factors[0] - self.eaten_up_vox[0]

    def next_valid(self, size: int) -> int:
        """Smallest valid size >= size; the period of valid sizes is the product of the factors."""
        lowest = max(size, self.context() + 1)
        candidates = range(lowest, lowest + 2 * math.prod(self.factors) + 1)
        return next(n for n in candidates if self.output(n) is not None)

    def _inner(self) -> _Axis:
        return _Axis(self.factors[1:], self.eaten_down_vox[1:], self.eaten_up_vox[1:])


def _axis(spec: HasFactors, axis: int) -> _Axis:
    levels = len(spec.downsample_factors)
    down = tuple(_eaten_vox(spec.kernels_before(level), axis) for level in range(levels + 1))
    up = tuple(_eaten_vox(spec.kernels_after(level), axis) for level in range(levels))
    return _Axis(tuple(f[axis] for f in spec.downsample_factors), down, up)


def _eaten_vox(kernels: tuple[Vox3, ...], axis: int) -> int:
    even = [kernel for kernel in kernels if kernel[axis] % 2 == 0]
    if even:
        raise ConfigError("an even kernel has no centre voxel", wanted="kernel_size 1, 3, 5, ...", found=even[0][axis])
    return sum(kernel[axis] - 1 for kernel in kernels)
