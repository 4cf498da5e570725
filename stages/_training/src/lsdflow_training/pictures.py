"""Middle sections of a patch as pictures for TensorBoard: raw, targets, predictions, weights."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lsdflow_training.network_step import StepResult
from lsdflow_training.patch import Patch


def pictures(patch: Patch, result: StepResult) -> dict[str, np.ndarray]:
    """Pictures by name, (y, x, 3) uint8: raw, and for each output its target, prediction and weight.

    LSDs show the offset to the centre of mass (channels 0 to 2) as colours, affinities the three nearest neighbours.
    """
    drawn = {"raw": _grey((patch.raw[0, 0] + 1) / 2)}
    for name, target in patch.targets.items():
        weight = patch.weights[name][0].amax(0)
        drawn[f"{name}/target"] = _colours(target[0])
        drawn[f"{name}/prediction"] = _colours(result.predictions[name].detach()[0])
        drawn[f"{name}/weight"] = _grey(weight / weight.max().clamp(min=1e-6))
    return drawn


def _colours(channels: Tensor) -> np.ndarray:
    """(c, z, y, x) in [0, 1], c >= 3 -> the first three channels of the middle section."""
    return _bytes(channels[:3, channels.shape[1] // 2].permute(1, 2, 0))


def _grey(volume: Tensor) -> np.ndarray:
    """(z, y, x) in [0, 1] -> the middle section."""
    return _bytes(volume[volume.shape[0] // 2][..., None].expand(-1, -1, 3))


def _bytes(picture: Tensor) -> np.ndarray:
    values: np.ndarray = picture.float().clamp(0, 1).mul(255).round().byte().cpu().numpy()
    return values
