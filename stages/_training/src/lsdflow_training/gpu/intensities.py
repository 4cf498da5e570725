"""Changes of intensities on the training device: those of data/intensities.py with the same drawn numbers, on tensors.

`raw` is float32 (z, y, x), 0 to 1, and so is every result, a new tensor. The noise differs between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_training.data.intensities import (
    Blurring,
    Change,
    Contrast,
    Damage,
    Damages,
    Exponents,
    Noise,
    Numbers,
    opacity,
)

BLUR_REACH = 3.0  # sigmas, as in data/intensities.py


def changed(raw: Tensor, changes: Iterable[Change]) -> Tensor:
    """Raw after all changes, in their order."""
    for change in changes:
        raw = _changed(raw, change)
    return raw


def _changed(raw: Tensor, change: Change) -> Tensor:
    if isinstance(change, Contrast):
        return with_contrast(raw, change)
    if isinstance(change, Exponents):
        return raw ** _along_z(change.values, raw)
    if isinstance(change, Blurring):
        return _with_blur(raw, change)
    return _with_noise(raw, change) if isinstance(change, Noise) else damaged(raw, change)


def with_contrast(raw: Tensor, how: Contrast) -> Tensor:
    """Distances from the mean (of the patch, or of each section) scaled, then shifted, clipped to 0 and 1."""
    mean = raw.mean() if len(how.scales) == 1 else raw.mean((1, 2), keepdim=True)
    return ((raw - mean) * _along_z(how.scales, raw) + mean + _along_z(how.shifts, raw)).clamp_(0, 1)


def blurred(raw: Tensor, sigma_vox: float) -> Tensor:
    """Gaussian blur of raw (z, y, x) along all axes, or of a section (y, x); edge voxels are repeated outwards."""
    for axis in range(raw.ndim):
        raw = _blurred_along(raw, sigma_vox, axis)
    return raw.clamp(0, 1)


def damaged(raw: Tensor, how: Damages) -> Tensor:
    """Raw with its sections damaged according to `how.what`, as data/intensities.damaged."""
    result = raw.clone()
    for z in np.flatnonzero(how.what).tolist():
        result[z] = _DAMAGED[Damage(int(how.what[z]))](raw, z, how)
    return result


def _along_z(values: Numbers, raw: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=raw.dtype).to(raw.device)[:, None, None]


def _with_blur(raw: Tensor, how: Blurring) -> Tensor:
    if not how.by_section:
        return blurred(raw, float(how.sigmas_vox[0])) if how.sigmas_vox[0] else raw
    result = raw.clone()
    for z in np.flatnonzero(how.sigmas_vox).tolist():
        result[z] = blurred(raw[z], float(how.sigmas_vox[z]))
    return result


def _blurred_along(raw: Tensor, sigma_vox: float, axis: int) -> Tensor:
    reach = int(BLUR_REACH * sigma_vox + 0.5)
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma_vox) ** 2)
    kernel = (weights / weights.sum()).to(raw.device, raw.dtype)
    lines = raw.movedim(axis, -1)
    flat = functional.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="replicate")
    return functional.conv1d(flat, kernel[None, None]).reshape(lines.shape).movedim(-1, axis)


def _with_noise(raw: Tensor, how: Noise) -> Tensor:
    generator = torch.Generator(raw.device).manual_seed(how.seed)
    noise = torch.randn(raw.shape, generator=generator, device=raw.device, dtype=raw.dtype)
    return (raw + how.std * noise).clamp_(0, 1)


def _pale(raw: Tensor, z: int, how: Damages) -> Tensor:
    mean = raw[z].mean()
    return (mean + (raw[z] - mean) * how.contrast).clamp_(0, 1)


def _covered(raw: Tensor, z: int, how: Damages) -> Tensor:
    covers = how.artifacts[z]
    alpha = torch.from_numpy(opacity(covers, raw.shape[1:])).to(raw.device)
    content = raw[covers.section].flip(0, 1).roll(covers.moved_vox, (0, 1))
    return raw[z] * (1 - alpha) + content * alpha


_DAMAGED: dict[Damage, Callable[[Tensor, int, Damages], Tensor]] = {
    Damage.MISSING: lambda raw, z, _how: torch.zeros_like(raw[z]),
    Damage.LOW_CONTRAST: _pale,
    Damage.ARTIFACT: _covered,
    Damage.REPEATED: lambda raw, z, _how: raw[z - 1 if z else min(1, len(raw) - 1)],
}
