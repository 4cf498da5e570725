"""Weights of convolutions in torch's layout and in TensorFlow's.

                      torch                 TensorFlow
    convolution       (out, in, z, y, x)    (z, y, x, in, out)
    its transpose     (in, out, z, y, x)    (z, y, x, out, in)
    bias              (out)                 (out)

The same permutation serves both kinds.  No kernel is flipped: both frameworks compute correlations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import torch
from torch import Tensor

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3
from lsdflow_network.chain import chain_shapes

KERNEL_DIMENSIONS = 5


def to_tensorflow(values: Tensor) -> npt.NDArray[np.float32]:
    """Convert a weight or bias from torch's layout to TensorFlow's, float32. Raises BadData unless 1 or 5 axes."""
    array = values.detach().cpu().numpy().astype(np.float32, copy=False)
    return np.ascontiguousarray(array.transpose(2, 3, 4, 1, 0) if _is_kernel(array.shape) else array)


def to_torch(values: npt.NDArray[np.float32]) -> Tensor:
    """The inverse of to_tensorflow, bit for bit."""
    array = values.transpose(4, 3, 0, 1, 2) if _is_kernel(values.shape) else values
    return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))


def _is_kernel(shape: tuple[int, ...]) -> bool:
    if len(shape) not in (1, KERNEL_DIMENSIONS):
        raise BadData("not a weight of a 3-D convolution", wanted="1 or 5 axes", found=list(shape))
    return len(shape) == KERNEL_DIMENSIONS


class UNet:
    """A network from a specification and weights with torch's names and layout.

    `variables`: name -> tf.Variable in TensorFlow's layout, in the order of `weights`.  Create it within
    strategy.scope() to have it on every device.
    """

    def __init__(
        self, spec: UNetSpec, outputs: Mapping[str, int], weights: Mapping[str, Tensor], trainable: bool = True
    ) -> None:
        self.factors: list[Vox3] = [(f[0], f[1], f[2]) for f in spec.downsample_factors]
        self.spec = spec
        self.outputs = tuple(outputs)
        self.variables: dict[str, tf.Variable] = {
            name: tf.Variable(to_tensorflow(value), trainable=trainable, name=name.replace(".", "_"))
            for name, value in weights.items()
        }

    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """(n, z, y, x, in_channels) float32 -> {output: (n, z', y', x', channels)} float32 in [0, 1]."""
        features = self._features(x, 0)
        return {name: tf.sigmoid(self._convolve(f"heads.{name}", features)) for name in self.outputs}

    def _features(self, x: tf.Tensor, level: int) -> tf.Tensor:
        skip = self._pass(f"down.{level}", x, len(self.spec.kernels_before(level)))
        if level == len(self.factors):
            return skip
        factor = self.factors[level]
        inner = self._features(max_pool(skip, factor), level + 1)
        upsampled = self._upsample(level, inner)
        merged = tf.concat([crop_centre(skip, upsampled.shape[1:4]), upsampled], axis=-1)
        return self._pass(f"merge.{level}", merged, len(self.spec.kernels_after(level)))

    def _pass(self, name: str, x: tf.Tensor, convs: int) -> tf.Tensor:
        for number in range(convs):
            x = tf.nn.relu(self._convolve(f"{name}.convs.{number}", x))
        return x

    def _convolve(self, name: str, x: tf.Tensor) -> tf.Tensor:
        kernel, bias = self.variables[f"{name}.weight"], self.variables[f"{name}.bias"]
        return tf.nn.bias_add(tf.nn.conv3d(x, kernel, (1, 1, 1, 1, 1), "VALID"), bias)

    def _upsample(self, level: int, x: tf.Tensor) -> tf.Tensor:
        factor = self.factors[level]
        if self.spec.upsampling == "repeat":
            for axis, times in zip((1, 2, 3), factor, strict=True):
                x = tf.repeat(x, times, axis)
            return x
        kernel, bias = self.variables[f"up.{level}.up.weight"], self.variables[f"up.{level}.up.bias"]
        spatial = [n * f for n, f in zip(x.shape[1:4], factor, strict=True)]
        shape = [x.shape[0], *spatial, kernel.shape[3]]
        up = tf.nn.bias_add(tf.nn.conv3d_transpose(x, kernel, shape, (1, *factor, 1), "VALID"), bias)
        return tf.nn.relu(up) if self.spec.upsampling == "reduce" else up


def max_pool(x: tf.Tensor, factor: Vox3) -> tf.Tensor:
    """Largest value of each window of (n, z, y, x, c); what is left of an axis behind the last window is not used.

    The gradient of a window goes to the first of its largest values, as in torch.  TensorFlow's own kernel gives the
    whole gradient to each of them, which multiplies it where raw is constant (padding); its oneDNN kernel does not, but
    only some CPUs use that.
    """
    n, channels = x.shape[0], x.shape[-1]
    counts = [size // f for size, f in zip(x.shape[1:4], factor, strict=True)]
    covered = [count * f for count, f in zip(counts, factor, strict=True)]
    split = [size for pair in zip(counts, factor, strict=True) for size in pair]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def pool(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        """The pooled tensor, and its gradient as a function of the one of the result."""

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            """The gradient of x, from that of the result."""
            inside = x[:, : covered[0], : covered[1], : covered[2], :]
            windows = tf.transpose(tf.reshape(inside, [n, *split, channels]), (0, 1, 3, 5, 7, 2, 4, 6))
            flat = tf.reshape(windows, [n, *counts, channels, math.prod(factor)])
            first = tf.one_hot(tf.argmax(flat, axis=-1), math.prod(factor), dtype=upstream.dtype)
            spread = tf.reshape(upstream[..., None] * first, [n, *counts, channels, *factor])
            found = tf.reshape(tf.transpose(spread, (0, 1, 5, 2, 6, 3, 7, 4)), [n, *covered, channels])
            behind = [[0, size - used] for size, used in zip(x.shape[1:4], covered, strict=True)]
            return tf.pad(found, [[0, 0], *behind, [0, 0]])

        return tf.nn.max_pool3d(x, factor, factor, "VALID"), gradient

    return pool(x)


def crop_centre(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Central part of (n, z, y, x, c) with the given spatial shape."""
    begins = [(have - want) // 2 for have, want in zip(x.shape[1:4], shape, strict=True)]
    slices = [slice(b, b + want) for b, want in zip(begins, shape, strict=True)]
    return x[:, slices[0], slices[1], slices[2], :]


class AcrLsd:
    """Raw -> {"affs", "lsds_u8"}; no gradient reaches the LSD network."""

    def __init__(self, lsd: UNet, lsd_spec: UNetSpec, affinities: UNet, affinity_spec: UNetSpec) -> None:
        self.lsd, self.lsd_spec, self.affinities, self.affinity_spec = lsd, lsd_spec, affinities, affinity_spec

    def __call__(self, raw: tf.Tensor) -> dict[str, tf.Tensor]:
        """(n,z,y,x,1) raw in [-1,1] -> affs (n,...,3) float32 [0,1] and lsds_u8 (n,...,10) uint8, not cropped."""
        z, y, x = (int(n) for n in raw.shape[1:4])
        shape = chain_shapes(self.lsd_spec, self.affinity_spec, (z, y, x)).affinity_input_vox
        lsds = tf.stop_gradient(quantise_u8(self.lsd(raw)["lsds"]))
        both = tf.concat([crop_centre(raw, shape), dequantise_u8(crop_centre(lsds, shape))], axis=-1)
        return {"affs": self.affinities(both)["affs"], "lsds_u8": lsds}


def quantise_u8(values: tf.Tensor) -> tf.Tensor:
    """Float tensor, nominally in [0, 1] (clipped) -> uint8 = floor(value * 255); bit for bit as in torch."""
    return tf.cast(tf.floor(tf.clip_by_value(values, 0.0, 1.0) * 255.0), tf.uint8)


def dequantise_u8(values: tf.Tensor) -> tf.Tensor:
    """Uint8 tensor -> float32 in [0, 1] = value / 255; bit for bit as in torch."""
    return tf.cast(values, tf.float32) / 255.0


def weighted_mse(prediction: tf.Tensor, target: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Sum of weight * (prediction - target)^2 over the number of voxels with weight > 0 (0 if there are none).

    prediction, target, weight: same shape, float32; weight >= 0.  Ignored voxels are set to 0 before squaring, so that
    NaN or infinity there reaches neither the loss nor a gradient.
    """
    counted = weight > 0
    zero = tf.zeros((), prediction.dtype)
    difference = tf.where(counted, prediction, zero) - tf.where(counted, target, zero)
    total = tf.reduce_sum(weight * tf.square(difference))
    return total / tf.maximum(tf.reduce_sum(tf.cast(counted, tf.float32)), 1.0)


def losses_by_output(
    predictions: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor], weights: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """The loss of each output in `targets`; training minimises their sum."""
    return {name: weighted_mse(predictions[name], targets[name], weights[name]) for name in targets}
