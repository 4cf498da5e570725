"""Check that a validation loss is plausible: it must be below the loss of the best answer that ignores the image.

A network that has learnt anything is below it.  One that is still above it after its first hundreds of iterations sees
no relation between image and targets: labels of another place, a wrong axis order, an image without contrast.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lsdflow_training.patch import Patch

SETTLED_ITERATIONS = 500
CLOSE_TO_CONSTANT = 0.95


def constant_answer_loss(patches: Sequence[Patch]) -> float:
    """Mean loss (see losses.py) over patches of the best constant answer: per channel, the weighted mean of targets.

    Infinity if there are no patches.
    """
    if not patches:
        return float("inf")
    losses = torch.zeros(len(patches), dtype=torch.float64)
    for name in patches[0].targets:
        constant = _weighted_mean([p.targets[name] for p in patches], [p.weights[name] for p in patches])
        for number, patch in enumerate(patches):
            weight = patch.weights[name].double()
            squares = (weight * (patch.targets[name].double() - constant).square()).sum()
            losses[number] += squares / (weight > 0).sum().clamp(min=1)
    return float(losses.mean())


def _weighted_mean(targets: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """(1, c, 1, 1, 1): the mean over all patches by channel; each voxel weighs as in the loss of its patch."""
    shares = [w.double() / (w > 0).sum().clamp(min=1) for w in weights]
    over = (0, 2, 3, 4)
    total = torch.stack([(s * t.double()).sum(over, keepdim=True) for s, t in zip(shares, targets, strict=True)])
    count = torch.stack([s.sum(over, keepdim=True) for s in shares])
    mean: Tensor = total.sum(0) / count.sum(0).clamp(min=1e-12)
    return mean


def doubt(loss: float, constant: float, iteration: int) -> str:
    """Why a validation loss at this iteration is not plausible; "" if it is."""
    if iteration < SETTLED_ITERATIONS or loss < CLOSE_TO_CONSTANT * constant:
        return ""
    return (
        f"iteration {iteration}: the validation loss {loss:.4g} is no better than that of an answer that ignores the "
        f"image ({constant:.4g}); look at a snapshot: are labels and image of the same place, is there contrast?"
    )
