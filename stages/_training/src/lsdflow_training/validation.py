"""Held-out validation: fixed patches in a slab of each volume that is never trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gunpowder as gp
import torch
from torch import nn

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.data.batches import batch_seed, seeded
from lsdflow_training.data.pipeline import Keys, batch_request, validation_pipeline
from lsdflow_training.data.volumes import Source
from lsdflow_training.network_step import TrainingPrecision, forward_loss
from lsdflow_training.patch import Patch, to_patch
from lsdflow_training.processes.group import Group
from lsdflow_training.recipe import Recipe


def patch_begins(slab: Box, output_vox: Vox3, count: int) -> list[Vox3]:
    """Begins of up to `count` output patches, evenly distributed over the slab, flush with its far end in z."""
    steps = [max(1, math.ceil(n / o)) for n, o in zip(slab.shape_vox, output_vox, strict=True)]
    grid: list[Vox3] = []
    for iz in range(steps[0]):
        for iy in range(steps[1]):
            for ix in range(steps[2]):
                index = (iz, iy, ix)
                z, y, x = (
                    b + (n - o if s == 1 else round(i * (n - o) / (s - 1)))
                    for b, n, o, s, i in zip(slab.begin_vox, slab.shape_vox, output_vox, steps, index, strict=True)
                )
                grid.append((z, y, x))
    chosen = range(0, len(grid), max(1, math.ceil(len(grid) / max(count, 1))))
    return [grid[i] for i in chosen][:count]


def read_patches(
    keys: Keys, recipe: Recipe, sources: Sequence[Source], rank: int = 0, processes: int = 1
) -> list[Patch]:
    """The share of this process of the validation patches, on the CPU; empty if nothing is held out."""
    held_out = [source for source in sources if source.validation is not None]
    per_volume = math.ceil(recipe.schedules.validation_patches / max(len(held_out), 1))
    mine = slice(rank, None, processes)
    return [patch for source in held_out for patch in _patches_of(keys, recipe, source, per_volume, mine)]


def _patches_of(keys: Keys, recipe: Recipe, source: Source, count: int, mine: slice) -> list[Patch]:
    if source.validation is None:
        return []
    pipeline = validation_pipeline(keys, recipe, source)
    patches = []
    with gp.build(pipeline):
        for number, begin in list(enumerate(patch_begins(source.validation, recipe.shapes.output_vox, count)))[mine]:
            end_if_asked()
            request = seeded(batch_request(keys, recipe, begin), batch_seed(recipe.seed, number))
            patches.append(to_patch(pipeline.request_batch(request), keys, torch.device("cpu")))
    return [patch for patch in patches if any(bool((w > 0).any()) for w in patch.weights.values())]


def validation_loss(
    network: nn.Module, patches: Sequence[Patch], device: torch.device, precision: TrainingPrecision
) -> float:
    """Mean loss over the patches (the sum over outputs, as in training)."""
    losses = _losses(network, patches, device, precision)
    return sum(losses) / len(losses)


def shared_validation_loss(
    network: nn.Module,
    patches: Sequence[Patch],
    group: Group,
    raw_vox: Vox3,
    *,
    device: torch.device,
    precision: TrainingPrecision,
) -> float | None:
    """Mean loss over the patches of all processes; None if there are none.

    If weights are shared, all processes must call the network equally often: those with fewer patches use zeros.
    """
    counts = [row[0] for row in group.gather([len(patches)])]
    losses = _losses(network, patches, device, precision)
    network.eval()
    with torch.no_grad():
        for _ in range(int(max(counts)) - len(losses)):
            network(torch.zeros((1, 1, *raw_vox), device=device))
    network.train()
    total = sum(row[0] for row in group.gather([sum(losses)]))
    return total / sum(counts) if sum(counts) else None


def _losses(
    network: nn.Module, patches: Sequence[Patch], device: torch.device, precision: TrainingPrecision
) -> list[float]:
    network.eval()
    losses = []
    with torch.no_grad():
        for patch in patches:
            moved = Patch(
                raw=patch.raw.to(device),
                targets={name: value.to(device) for name, value in patch.targets.items()},
                weights={name: value.to(device) for name, value in patch.weights.items()},
            )
            losses.append(float(forward_loss(network, moved, precision).loss))
    network.train()
    return losses
