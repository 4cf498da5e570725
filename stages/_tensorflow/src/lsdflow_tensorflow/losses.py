"""The loss of all networks in TensorFlow, equal to lsdflow_training.losses: voxels of weight 0 add exactly 0."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


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
