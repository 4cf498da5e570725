"""The loss of all networks: mean squared error with a weight per voxel and channel; weight 0 adds exactly 0."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mse(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum of weight * (prediction - target)^2 over the number of voxels with weight > 0 (0 if there are none).

    prediction, target, weight: same shape, float32; weight >= 0.  Ignored voxels are set to 0 before squaring, so that
    NaN or infinity there reaches neither the loss nor a gradient.  The denominator is that of the published networks
    (tf.losses, SUM_BY_NONZERO_WEIGHTS).
    """
    counted = weight > 0
    zero = torch.zeros((), dtype=prediction.dtype, device=prediction.device)
    difference = torch.where(counted, prediction, zero) - torch.where(counted, target, zero)
    total = (weight * difference.square()).sum()
    return total / counted.sum().clamp(min=1)


def total_loss(
    predictions: dict[str, Tensor], targets: dict[str, Tensor], weights: dict[str, Tensor]
) -> tuple[Tensor, dict[str, float]]:
    """The sum of the losses of all outputs in `targets`, and the value of each by name."""
    losses = {name: weighted_mse(predictions[name], targets[name], weights[name]) for name in targets}
    return torch.stack(list(losses.values())).sum(), {name: float(loss.detach()) for name, loss in losses.items()}
