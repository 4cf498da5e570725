"""The published U-Net in TensorFlow, channels last: same layers and names as in lsdflow_network.unet.

The weights come from the torch network (or a bundle) and are copied back to it under the names of its state dict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from torch import Tensor

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3
from lsdflow_tensorflow.weights import to_tensorflow


class UNet:
    """A network from a specification and weights with torch's names and layout.

    Raises BadData if weights are missing or superfluous.  `variables`: name -> tf.Variable in TensorFlow's layout, in
    the order of `weights`.  Create it within strategy.scope() to have it on every device.
    """

    def __init__(
        self, spec: UNetSpec, outputs: Mapping[str, int], weights: Mapping[str, Tensor], trainable: bool = True
    ) -> None:
        self.factors: list[Vox3] = [(f[0], f[1], f[2]) for f in spec.downsample_factors]
        self.spec = spec
        self.outputs = tuple(outputs)
        wanted = set(_layer_names(spec, self.outputs))
        if wanted != set(weights):
            raise BadData(
                "the weights are not those of this network",
                wanted=sorted(wanted - set(weights)) or "nothing beside the network's",
                found=sorted(set(weights) - wanted) or "nothing else",
            )
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
        inner = self._features(tf.nn.max_pool3d(skip, factor, factor, "VALID"), level + 1)
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


def crop_centre(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Central part of (n, z, y, x, c) with the given spatial shape."""
    begins = [(have - want) // 2 for have, want in zip(x.shape[1:4], shape, strict=True)]
    slices = [slice(b, b + want) for b, want in zip(begins, shape, strict=True)]
    return x[:, slices[0], slices[1], slices[2], :]


def _layer_names(spec: UNetSpec, outputs: Sequence[str]) -> list[str]:
    levels = len(spec.downsample_factors)
    convs = [(f"down.{level}", spec.kernels_before(level)) for level in range(levels + 1)]
    convs += [(f"merge.{level}", spec.kernels_after(level)) for level in range(levels)]
    layers = [f"{name}.convs.{number}" for name, kernels in convs for number in range(len(kernels))]
    if spec.upsampling != "repeat":
        layers += [f"up.{level}.up" for level in range(levels)]
    layers += [f"heads.{name}" for name in outputs]
    return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
