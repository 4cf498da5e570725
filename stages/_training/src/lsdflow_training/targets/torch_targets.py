"""Targets and weights of a patch on the training device: boundaries, affinities, balancing, LSDs.

The values are those of the nodes GrowBoundary, AddAffinities, BalanceLabels and AddLsdTargets. Nothing here waits for
the device, apart from the LSDs, which need the number of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.settings import Targets
from lsdflow_training.targets.boundaries import becomes_boundary
from lsdflow_training.targets.lsd import CHANNELS, context_vox, local_shape_descriptors

SLAB = 3  # far neighbours differ more often than near ones: balance three channels at a time, as published
SMALLEST_SHARE = 0.05  # lower bound for the share of a class, as in gunpowder


@dataclass(frozen=True)
class PatchTargets:
    """Targets and weights by output, (c, z, y, x) float32, and the labels from which they were made (with context)."""

    targets: dict[str, Tensor]
    weights: dict[str, Tensor]
    labels: Tensor


def make_targets(labels: Tensor, mask: Tensor, output: Box, settings: Targets, only_xy: bool) -> PatchTargets:
    """Targets and weights at `output`, a box of labels (integers) and mask (mask states), both (z, y, x).

    only_xy: boundaries do not grow along z (anisotropic volumes).
    """
    labels = labels.masked_fill(mask == MaskState.BACKGROUND, 0)
    if settings.grow_boundary_vox:
        labels = grow_boundary(labels, mask, settings.grow_boundary_vox, only_xy)
    targets: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    if settings.lsds:
        targets["lsds"], weights["lsds"] = _lsds(labels, mask, output, settings)
    if settings.affinities:
        targets["affs"], counted = affinities(labels, mask != MaskState.IGNORE, output, settings.neighborhood)
        weights["affs"] = balanced(targets["affs"], counted) if settings.balance_labels else counted.to(torch.float32)
    return PatchTargets(targets, weights, labels)


def grow_boundary(labels: Tensor, mask: Tensor, steps: int, only_xy: bool) -> Tensor:
    """As `boundaries.grow_boundary`: `steps` voxels of background at each boundary; voxels of mask 0 keep labels."""
    return labels.masked_fill(becomes_boundary(labels, mask > 0, steps, only_xy), 0)


def affinities(labels: Tensor, trained: Tensor, output: Box, offsets: Sequence[Vox3]) -> tuple[Tensor, Tensor]:
    """(affinities, counted), (n, z, y, x) at `output`: float32, 1 if both ends have the same label; bool, both trained.

    offsets: from a voxel to its neighbour, which must be within the labels for every voxel of the output.
    """
    here, trained_here = labels[output.slices()], trained[output.slices()]
    found, counted = [], []
    for offset in offsets:
        there = output.translate(offset).slices()
        found.append((here == labels[there]) & (here > 0))
        counted.append(trained_here & trained[there])
    return torch.stack(found).to(torch.float32), torch.stack(counted)


def balanced(affs: Tensor, counted: Tensor) -> Tensor:
    """Weights (n, z, y, x), float32: both classes weigh the same in each slab of channels, as in BalanceLabels."""
    weights = torch.empty_like(affs)
    for first in range(0, len(affs), SLAB):
        part, seen = affs[first : first + SLAB] > 0, counted[first : first + SLAB]
        total = seen.sum()
        ones = (part & seen).sum()
        shares = torch.stack([total - ones, ones]).to(torch.float64) / total
        apart, same = (0.5 / shares.clamp(SMALLEST_SHARE, 1 - SMALLEST_SHARE)).to(torch.float32)
        weights[first : first + SLAB] = torch.where(part, same, apart).masked_fill_(~seen, 0)
    return weights


def _lsds(labels: Tensor, mask: Tensor, output: Box, settings: Targets) -> tuple[Tensor, Tensor]:
    """LSDs and their weights at `output`, (10, z, y, x); see lsd_node."""
    context = context_vox(settings.sigma_nm, settings.voxel_size_nm, settings.lsd_downsample)
    around = labels[output.grow(context).slices()]
    roi = Box(context, output.shape_vox)
    found = local_shape_descriptors(around, settings.sigma_nm, settings.voxel_size_nm, roi, settings.lsd_downsample)
    states = mask[output.slices()]
    counted = states == MaskState.BACKGROUND
    trained = states == MaskState.TRAIN
    counted |= trained if settings.train_background else trained & (labels[output.slices()] != 0)
    return found, counted.to(torch.float32).expand(CHANNELS, -1, -1, -1)
