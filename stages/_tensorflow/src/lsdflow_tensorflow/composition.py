"""AcrLSD in TensorFlow: raw -> frozen LSD network -> uint8 -> affinity network; see lsdflow_network.composition."""

from __future__ import annotations

import tensorflow as tf

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_network.chain import chain_shapes
from lsdflow_tensorflow.unet import UNet, crop_centre


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
