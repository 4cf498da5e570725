"""Augmentation on the training device: apply deformations, and changes of the intensities, to tensors.

Each deformation is drawn on the coarse grid on which gunpowder makes it (every 8th voxel); the device upsamples it
and gathers the voxels. Raw is interpolated linearly; labels and mask use the nearest voxel, once per deformation.

The values are those of cpu.py up to rounding, apart from the noise: its values differ between devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_contract.geometry import Vox3
from lsdflow_training.augmentation.description import (
    Blurring,
    Change,
    Contrast,
    Damage,
    Damages,
    Exponents,
    Noise,
    Numbers,
    Region,
    Step,
    Turn,
    Warp,
    opacity,
)

Volumes = dict[str, Tensor]
BLUR_REACH = 3.0  # sigmas, as in cpu.py


def apply_step(step: Step, volumes: Volumes) -> Volumes:
    """Raw, labels and mask (z, y, x), each after one step of the augmentation."""
    if isinstance(step, Turn):
        axes = [axis for axis, mirrored in enumerate(step.mirror) if mirrored]
        return {name: volume.flip(axes).permute(step.transpose) for name, volume in volumes.items()}
    field = fine_field(step, volumes["raw"].device)
    raw = gather_linear(volumes["raw"], _cut(field, step.regions["raw"]))
    region = step.regions["labels"]
    places = nearest_places(_cut(field, region), volumes["labels"].shape)
    return {
        "raw": raw,
        **{name: _taken(volumes[name], places, region.target.shape_vox) for name in ("labels", "mask")},
    }


def fine_field(warp: Warp, device: torch.device) -> Tensor:
    """Field (3, z, y, x), float32: source position of each of its voxels in the box, in voxels."""
    coarse = _sent(warp.coarse, device)
    field = functional.interpolate(coarse[None], size=warp.shape_vox, mode="trilinear", align_corners=True)[0]
    if warp.section_shifts_vox is not None:
        shifts = _sent(warp.section_shifts_vox, device)
        field[1:] += shifts.t()[:, :, None, None]
    return field


def gather_linear(source: Tensor, field: Tensor) -> Tensor:
    """Trilinear interpolation of source (z, y, x) for each voxel of the field, float32; outside: the nearest edge."""
    scale = _sent([2 / max(n - 1, 1) for n in source.shape], field.device)
    grid = torch.addcmul(field.new_full((), -1), field, scale[:, None, None, None])
    grid = grid.flip(0).movedim(0, -1)[None]  # grid_sample requires x, y, z in [-1, 1]
    source = source.contiguous()[None, None]
    found = functional.grid_sample(source, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return found[0, 0]


def nearest_places(field: Tensor, shape: torch.Size) -> Tensor:
    """Index in the flat source (of this shape) of the voxel nearest to each voxel of the field, flat; clamped."""
    z, y, x = (
        (axis + 0.5).floor_().clamp_(0, n - 1).to(torch.int32) for axis, n in zip(field.unbind(), shape, strict=True)
    )
    place: Tensor = z.mul_(shape[1]).add_(y).to(torch.int64)
    return place.mul_(shape[2]).add_(x).flatten()


def _taken(source: Tensor, places: Tensor, shape_vox: Vox3) -> Tensor:
    return source.flatten().index_select(0, places).view(shape_vox)


def _cut(field: Tensor, region: Region) -> Tensor:
    part = field[(slice(None), *region.target.slices())]
    return part - _sent(region.source_begin_vox, part.device)[:, None, None, None]


def _sent(values: Any, device: torch.device) -> Tensor:
    """The numbers as float32 on the device; no work that the device has queued is waited for."""
    return torch.as_tensor(values, dtype=torch.float32).to(device, non_blocking=True)


def changed(raw: Tensor, change: Change) -> Tensor:
    """Raw after one change."""
    if isinstance(change, Contrast):
        return with_contrast(raw, change)
    if isinstance(change, Exponents):
        return raw ** _along_z(change.values, raw)
    if isinstance(change, Blurring):
        return _with_blur(raw, change)
    return _with_noise(raw, change) if isinstance(change, Noise) else damaged(raw, change)


def with_contrast(raw: Tensor, contrast: Contrast) -> Tensor:
    """Distances from the mean (of the patch, or of each section) scaled, then shifted, clipped to 0 and 1."""
    mean = raw.mean() if len(contrast.scales) == 1 else raw.mean((1, 2), keepdim=True)
    return ((raw - mean) * _along_z(contrast.scales, raw) + mean + _along_z(contrast.shifts, raw)).clamp_(0, 1)


def blurred(raw: Tensor, sigma_vox: float) -> Tensor:
    """Gaussian blur of raw (z, y, x) along all axes, or of a section (y, x); edge voxels are repeated outwards."""
    for axis in range(raw.ndim):
        raw = _blurred_along(raw, sigma_vox, axis)
    return raw.clamp(0, 1)


def damaged(raw: Tensor, damages: Damages) -> Tensor:
    """Raw with its sections damaged according to `damages.what`, as in cpu.py."""
    result = raw.clone()
    for z in np.flatnonzero(damages.what).tolist():
        result[z] = _DAMAGED[Damage(int(damages.what[z]))](raw, z, damages)
    return result


def _along_z(values: Numbers, raw: Tensor) -> Tensor:
    return _sent(values, raw.device)[:, None, None]


def _with_blur(raw: Tensor, blurring: Blurring) -> Tensor:
    if not blurring.by_section:
        return blurred(raw, float(blurring.sigmas_vox[0])) if blurring.sigmas_vox[0] else raw
    result = raw.clone()
    for z in np.flatnonzero(blurring.sigmas_vox).tolist():
        result[z] = blurred(raw[z], float(blurring.sigmas_vox[z]))
    return result


def _blurred_along(raw: Tensor, sigma_vox: float, axis: int) -> Tensor:
    reach = int(BLUR_REACH * sigma_vox + 0.5)
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma_vox) ** 2)
    kernel = _sent(weights / weights.sum(), raw.device)
    lines = raw.movedim(axis, -1)
    flat = functional.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="replicate")
    return functional.conv1d(flat, kernel[None, None]).reshape(lines.shape).movedim(-1, axis)


def _with_noise(raw: Tensor, change: Noise) -> Tensor:
    generator = torch.Generator(raw.device).manual_seed(change.seed)
    noise = torch.randn(raw.shape, generator=generator, device=raw.device, dtype=raw.dtype)
    return (raw + change.std * noise).clamp_(0, 1)


def _pale(raw: Tensor, z: int, damages: Damages) -> Tensor:
    mean = raw[z].mean()
    return (mean + (raw[z] - mean) * damages.contrast).clamp_(0, 1)


def _covered(raw: Tensor, z: int, damages: Damages) -> Tensor:
    covers = damages.artifacts[z]
    alpha = _sent(opacity(covers, raw.shape[1:]), raw.device)
    content = raw[covers.section].flip(0, 1).roll(covers.moved_vox, (0, 1))
    return raw[z] * (1 - alpha) + content * alpha


_DAMAGED: dict[Damage, Callable[[Tensor, int, Damages], Tensor]] = {
    Damage.MISSING: lambda raw, z, _how: torch.zeros_like(raw[z]),
    Damage.LOW_CONTRAST: _pale,
    Damage.ARTIFACT: _covered,
    Damage.REPEATED: lambda raw, z, _how: raw[z - 1 if z else min(1, len(raw) - 1)],
}
