"""Memory and multiplications of one evaluation of a U-Net, computed from its description."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    levels = range(len(spec.downsample_factors))
    total = 0
    for level in range(len(levels) + 1):
        entering = spec.fmaps_of(level - 1) if level else spec.in_channels
        total += _pass_weights(entering, spec.fmaps_of(level), spec.kernels_before(level))
    for level in levels:
        both = spec.fmaps_of(level) + spec.upsampled_fmaps(level)
        total += _pass_weights(both, spec.fmaps_after(level), spec.kernels_after(level))
        if spec.upsampling != "repeat":
            factor = math.prod(spec.downsample_factors[level])
            total += factor * spec.fmaps_of(level + 1) * spec.upsampled_fmaps(level)
    return total


def _pass_weights(entering: int, fmaps: int, kernels: Sequence[Vox3]) -> int:
    """Number of weights of consecutive convolutions: `entering` input channels, then `fmaps` each."""
    return sum(math.prod(kernel) * fmaps * (fmaps if i else entering) for i, kernel in enumerate(kernels))


def multiply_adds(spec: UNetSpec, input_vox: Vox3) -> int:
    """Multiplications of the convolutions in one evaluation for an input of this shape, without the heads."""
    levels = range(len(spec.downsample_factors))
    total, size, channels = 0, input_vox, spec.in_channels
    for level in range(len(levels) + 1):
        done, size = _convolutions(size, channels, spec.fmaps_of(level), spec.kernels_before(level))
        total, channels = total + done, spec.fmaps_of(level)
        if level in levels:
            size = _per_axis(size, spec.downsample_factors[level], -1)
    for level in reversed(levels):
        size = _per_axis(size, spec.downsample_factors[level], 1)
        if spec.upsampling != "repeat":
            total += math.prod(size) * channels * spec.upsampled_fmaps(level)
        both, channels = spec.fmaps_of(level) + spec.upsampled_fmaps(level), spec.fmaps_after(level)
        done, size = _convolutions(size, both, channels, spec.kernels_after(level))
        total += done
    return total


def _convolutions(size: Vox3, entering: int, fmaps: int, kernels: Sequence[Vox3]) -> tuple[int, Vox3]:
    """Multiplications of consecutive valid convolutions, and the output shape."""
    total, channels = 0, entering
    for kernel in kernels:
        z, y, x = (s - k + 1 for s, k in zip(size, kernel, strict=True))
        size = z, y, x
        total, channels = total + math.prod(size) * math.prod(kernel) * channels * fmaps, fmaps
    return total, size


def _per_axis(size: Vox3, factor: Vox3, power: int) -> Vox3:
    z, y, x = (s * f if power > 0 else s // f for s, f in zip(size, factor, strict=True))
    return z, y, x
