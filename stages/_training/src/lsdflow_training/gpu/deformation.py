"""Deformation of patches on the training device: a compact form of what gunpowder has drawn, and its application.

A worker draws each deformation as gunpowder does, but keeps it on the coarse grid on which gunpowder makes it (every
8th voxel); the device upsamples it and gathers the voxels.  Raw is interpolated linearly; labels and mask use the
nearest voxel, once per deformation, as in gunpowder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.data.deformation import Field, Positions, field_at, upsampled_positions


@dataclass(frozen=True)
class Region:
    """Of one array: box of its result in the deformed box, and where its source begins (both relative to that box)."""

    target: Box
    source_begin_vox: Vox3


@dataclass(frozen=True)
class Warp:
    """An elastic deformation of a box: coarse field (3, a, b, c), shifts of sections (z, 2), regions of the arrays."""

    shape_vox: Vox3
    coarse: Field
    section_shifts_vox: Field | None
    regions: Mapping[str, Region]


@dataclass(frozen=True)
class Turn:
    """Axes mirrored, then axes transposed, with the arguments of numpy's flip and transpose."""

    mirror: tuple[bool, bool, bool]
    transpose: Vox3


Step = Warp | Turn
Volumes = dict[str, Tensor]


def source_box(shape_vox: Vox3, coarse: Field, section_shifts_vox: Field | None, target: Box) -> Box:
    """The source voxels of `target` (a box within shape_vox): hull of its field, rounded outwards as in gunpowder.

    A linear field has its extremes in the corners of the coarse cells, so only the voxels next to them are evaluated.
    """
    positions = upsampled_positions(coarse, shape_vox)
    chosen = [_beside_cells(at[part]) for at, part in zip(positions, target.slices(), strict=True)]
    if section_shifts_vox is not None:
        chosen[0] = np.ones_like(chosen[0])
    values = field_at(coarse, *(at[s][c] for at, s, c in zip(positions, target.slices(), chosen, strict=True)))
    if section_shifts_vox is not None:
        values[1:] += section_shifts_vox[target.slices()[0]].T[:, :, None, None]
    begin = [int(np.floor(axis.min())) for axis in values]
    end = [int(np.ceil(axis.max())) + 1 for axis in values]
    return Box((begin[0], begin[1], begin[2]), (end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]))


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
    coarse = torch.from_numpy(warp.coarse).to(device, non_blocking=True)
    field = functional.interpolate(coarse[None], size=warp.shape_vox, mode="trilinear", align_corners=True)[0]
    if warp.section_shifts_vox is not None:
        shifts = torch.from_numpy(warp.section_shifts_vox).to(device, non_blocking=True)
        field[1:] += shifts.t()[:, :, None, None]
    return field


def gather_linear(source: Tensor, field: Tensor) -> Tensor:
    """Trilinear interpolation of source (z, y, x) for each voxel of the field, float32; outside: the nearest edge."""
    longest = torch.tensor([max(n - 1, 1) for n in source.shape], dtype=field.dtype)
    scale = (2 / longest).to(field.device, non_blocking=True)
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
    begin = torch.tensor(region.source_begin_vox, dtype=part.dtype).to(part.device, non_blocking=True)
    return part - begin[:, None, None, None]


def _beside_cells(at: Positions) -> npt.NDArray[np.bool_]:
    """First and last position in each cell of the coarse grid."""
    changes = np.diff(at.astype(np.int64)) != 0
    chosen: npt.NDArray[np.bool_] = np.append(True, changes) | np.append(changes, True)
    return chosen
