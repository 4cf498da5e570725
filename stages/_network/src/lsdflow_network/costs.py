"""Memory and multiplications of one evaluation of a U-Net, computed from its description."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Vox3

_FLOAT_BYTES = 4
# The finest level holds the skip connection (1), the merged input (2), a result (1) and workspace; measured: 5.8.
_LIVE_COPIES = 6
# One copy as loaded, and the packed weights for the processor (for Winograd two copies).
_COPIES_OF_WEIGHTS = 3


def network_bytes(spec: UNetSpec, input_vox: Vox3) -> int:
    """Approximate memory of a network and of one evaluation of it, in bytes."""
    voxels = math.prod(input_vox)
    widest = max(spec.num_fmaps, spec.fmaps_after(0), _half_merged(spec))
    activations: int = voxels * _FLOAT_BYTES * (spec.in_channels + _LIVE_COPIES * widest)
    return activations + _COPIES_OF_WEIGHTS * _FLOAT_BYTES * weights_of(spec)


def _half_merged(spec: UNetSpec) -> int:
    """Half of the feature maps that the finest level merges; equals num_fmaps if the upsampling reduces them."""
    return (spec.num_fmaps + spec.upsampled_fmaps(0)) // 2 if spec.downsample_factors else spec.num_fmaps


def weights_of(spec: UNetSpec) -> int:
    """Number of weights of the convolutions of a U-Net, without biases and heads."""
    return sum(weights for _, weights in _convolutions(spec, (0, 0, 0)))


def multiply_adds(spec: UNetSpec, input_vox: Vox3) -> int:
    """Multiplications of the convolutions in one evaluation for an input of this shape, without the heads."""
    return sum(voxels * weights for voxels, weights in _convolutions(spec, input_vox))


def _convolutions(spec: UNetSpec, input_vox: Vox3) -> Iterator[tuple[int, int]]:
    """Of each convolution, in their order: voxels of its output (of an upsampling: of its input), and its weights."""
    size, levels = input_vox, len(spec.downsample_factors)
    for level in range(levels + 1):
        entering = spec.fmaps_of(level - 1) if level else spec.in_channels
        for output, weights in _pass(size, entering, spec.fmaps_of(level), spec.kernels_before(level)):
            yield math.prod(output), weights
            size = output
        if level < levels:
            size = _per_axis(size, spec.downsample_factors[level], -1)
    for level in reversed(range(levels)):
        factor, upsampled = spec.downsample_factors[level], spec.upsampled_fmaps(level)
        if spec.upsampling != "repeat":
            yield math.prod(size), math.prod(factor) * spec.fmaps_of(level + 1) * upsampled
        size, both = _per_axis(size, factor, 1), spec.fmaps_of(level) + upsampled
        for output, weights in _pass(size, both, spec.fmaps_after(level), spec.kernels_after(level)):
            yield math.prod(output), weights
            size = output


def _pass(size: Vox3, entering: int, fmaps: int, kernels: Sequence[Vox3]) -> Iterator[tuple[Vox3, int]]:
    """Output shape and number of weights of each of consecutive valid convolutions."""
    for kernel in kernels:
        z, y, x = (s - k + 1 for s, k in zip(size, kernel, strict=True))
        size = z, y, x
        yield size, math.prod(kernel) * entering * fmaps
        entering = fmaps


def _per_axis(size: Vox3, factor: Vox3, power: int) -> Vox3:
    z, y, x = (s * f if power > 0 else s // f for s, f in zip(size, factor, strict=True))
    return z, y, x
