r"""Held-out validation: fixed patches that are never trained, their loss, and what it says about the training.

Is the loss plausible? It must be below that of the best answer that ignores the image: a network that has learnt
anything is below it. One that is still above it after its first hundreds of iterations sees no relation between image
and targets: labels of another place, a wrong axis order, an image without contrast.

Should the training stop early? If the loss has stopped falling, or rises while the training loss falls:

        | best before               | no better for `patience` iterations
loss    |  \__                      |
        |     \___  .best           |   validation rises, training falls -> "overfit"
        |          \________________|___validation stays               -> "plateau"
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

import gunpowder as gp
import torch
from torch import Tensor, nn

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.curves import read_curves
from lsdflow_training.data.batches import batch_seed, seeded
from lsdflow_training.data.patch import Patch, to_patch
from lsdflow_training.data.pipeline import Keys, batch_request, validation_pipeline
from lsdflow_training.data.volumes import Source
from lsdflow_training.processes.collectives import Group
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.step import TrainingPrecision, forward_losses

LOG = logging.getLogger("lsdflow.training")
Verdict = Literal["continue", "plateau", "overfit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
SETTLED_ITERATIONS = 500  # a high validation loss is plausible before this iteration
MIN_IMPROVEMENT = 0.005  # share by which a validation loss must be lower to count as better
CLOSE_TO_CONSTANT = 0.95  # times the loss of the best constant answer: not plausible from here on


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
    keys: Keys, settings: TrainingSettings, sources: Sequence[Source], rank: int = 0, processes: int = 1
) -> list[Patch]:
    """The share of this process of the validation patches, on the CPU; empty if nothing is held out."""
    held_out = [source for source in sources if source.validation is not None]
    per_volume = math.ceil(settings.schedules.validation_patches / max(len(held_out), 1))
    mine = slice(rank, None, processes)
    return [patch for source in held_out for patch in _patches_of(keys, settings, source, per_volume, mine)]


def _patches_of(keys: Keys, settings: TrainingSettings, source: Source, count: int, mine: slice) -> list[Patch]:
    if source.validation is None:
        return []
    pipeline = validation_pipeline(keys, settings, source)
    patches = []
    with gp.build(pipeline):
        for number, begin in list(enumerate(patch_begins(source.validation, settings.shapes.output_vox, count)))[mine]:
            end_if_asked()
            request = seeded(batch_request(keys, settings, begin), batch_seed(settings.seed, number))
            patches.append(to_patch(pipeline.request_batch(request), keys, torch.device("cpu")))
    return [patch for patch in patches if any(bool((w > 0).any()) for w in patch.weights.values())]


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
            losses.append(float(forward_losses(network, [moved], precision)[0].loss))
    network.train()
    return losses


def verdict(validations: Mapping[int, float], losses: Mapping[int, float], patience: int | None) -> Verdict:
    """Whether a training should end, judged from its curves so far (iteration -> loss).

    "plateau" or "overfit" once no validation loss of the last `patience` iterations was below (1 - MIN_IMPROVEMENT)
    times the best one before them. "overfit" if also their mean is above (1 + MIN_IMPROVEMENT) times that best one,
    and the mean training loss of these iterations is below that of as many iterations before.
    """
    if patience is None or not validations:
        return "continue"
    since = max(validations) - patience
    before = [loss for iteration, loss in validations.items() if iteration <= since]
    recent = [loss for iteration, loss in validations.items() if iteration > since]
    if not before or min(recent) < min(before) * (1 - MIN_IMPROVEMENT):
        return "continue"
    if fmean(recent) > min(before) * (1 + MIN_IMPROVEMENT) and _falls(losses, since, patience):
        return "overfit"
    return "plateau"


def _falls(losses: Mapping[int, float], since: int, patience: int) -> bool:
    recent = [loss for iteration, loss in losses.items() if iteration > since]
    before = [loss for iteration, loss in losses.items() if since - patience < iteration <= since]
    return bool(recent and before) and fmean(recent) < fmean(before)


def constant_answer_loss(patches: Sequence[Patch]) -> float:
    """Mean loss (see step.py) over patches of the best constant answer: per channel, the weighted mean of targets.

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


def implausible(loss: float, constant: float, iteration: int) -> str:
    """Why a validation loss at this iteration is not plausible; "" if it is."""
    if iteration < SETTLED_ITERATIONS or loss < CLOSE_TO_CONSTANT * constant:
        return ""
    return (
        f"iteration {iteration}: the validation loss {loss:.4g} is no better than that of an answer that ignores the "
        f"image ({constant:.4g}); check a snapshot: do labels and image match, is there contrast?"
    )


class LossMonitor:
    """Judges the curves in `folder`: is the validation loss plausible, and should the training continue (`verdict`)?"""

    def __init__(self, folder: Path, patience: int | None, group: Group) -> None:
        self._folder, self._patience, self._group = folder, patience, group
        self._constant = float("inf")
        self.verdict: Verdict = "continue"

    def begin(self, patches: Sequence[Patch]) -> None:
        """Prepare with the validation patches; all processes together. BadData if early stopping has no patches."""
        self._constant = constant_answer_loss(patches)
        if self._patience is not None and not any(row[0] for row in self._group.gather([len(patches)])):
            raise BadData(
                "`validation_fraction` selects no labelled voxels, so early stopping cannot be used",
                where="the end in z of the training volumes",
                wanted="voxels there that the mask trains",
                fix="raise validation_fraction, correct the mask, or leave patience_iterations out",
            )

    def check(self, iteration: int, validation_loss: float) -> None:
        """Check a new validation loss, which must already be in the curves."""
        reason = implausible(validation_loss, self._constant, iteration)
        if reason and self._group.writes:
            LOG.warning(reason)
        self.judge(iteration)

    def judge(self, iteration: int) -> None:
        """Update the verdict from the curves up to an iteration; all processes together."""
        if self._patience is None:
            return
        found = 0
        if self._group.writes:
            validations, losses = read_curves(self._folder, iteration)
            found = VERDICTS.index(verdict(validations, losses, self._patience))
        self.verdict = VERDICTS[int(self._group.of_rank_0(found))]
        if self.verdict != "continue":
            LOG.info("%s: the validation loss was no better for %d iterations", self.verdict, self._patience)
