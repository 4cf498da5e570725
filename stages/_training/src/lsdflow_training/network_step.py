"""One training step: batch -> forward -> loss -> backward, on a device and at a precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import gunpowder as gp
import numpy as np
import torch
from torch import Tensor, nn

from lsdflow_network.precision import Precision, autocast, memory_format
from lsdflow_network.unet import crop_centre
from lsdflow_training.losses import total_loss
from lsdflow_training.pipeline import Keys


@dataclass(frozen=True)
class Patch:
    """One batch on the device: raw (1,1,z,y,x) in [-1,1]; targets and weights by output, (1,c,z,y,x) float32."""

    raw: Tensor
    targets: dict[str, Tensor]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class StepResult:
    """Loss of a step (sum and by output) and, if asked for, the predictions and the gradients that reached them."""

    loss: Tensor
    losses: dict[str, float]
    predictions: Mapping[str, Tensor]


def to_patch(batch: gp.Batch, keys: Keys, device: torch.device) -> Patch:
    """Move a batch of the pipeline to the device."""
    pairs = {"lsds": (keys.lsds, keys.lsds_weight), "affs": (keys.affs, keys.affs_weight)}
    present = {name: pair for name, pair in pairs.items() if pair[0] in batch.arrays}
    raw = _tensor(batch[keys.raw].data, device)[None, None].contiguous(memory_format=memory_format(device))
    return Patch(
        raw=raw,
        targets={name: _tensor(batch[target].data, device)[None] for name, (target, _) in present.items()},
        weights={name: _tensor(batch[weight].data, device)[None] for name, (_, weight) in present.items()},
    )


def forward_loss(network: nn.Module, patch: Patch, precision: Precision) -> StepResult:
    """Predictions cropped to the targets, and the loss (still attached to the graph)."""
    with autocast(patch.raw.device, precision):
        predictions = network(patch.raw)
    cropped = {name: crop_centre(predictions[name], patch.targets[name].shape[2:]) for name in patch.targets}
    loss, losses = total_loss(cropped, patch.targets, patch.weights)
    return StepResult(loss=loss, losses=losses, predictions={**predictions, **cropped})


def train_step(
    network: nn.Module, optimizer: torch.optim.Optimizer, patch: Patch, precision: Precision, keep_gradients: bool
) -> StepResult:
    """One optimizer step; with keep_gradients the predictions keep `.grad` (for snapshots)."""
    optimizer.zero_grad(set_to_none=True)
    result = forward_loss(network, patch, precision)
    if keep_gradients:
        for name in patch.targets:
            result.predictions[name].retain_grad()
    if not torch.isfinite(result.loss):
        return result
    result.loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return result


def _tensor(data: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(device, non_blocking=True)
