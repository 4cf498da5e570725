"""One training step: patches -> forward -> loss -> backward at a precision -> optimizer -> average of the weights.

The loss of all networks is the mean squared error with a weight per voxel and channel; weight 0 adds exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lsdflow_network.precision import autocast
from lsdflow_network.unet import crop_centre
from lsdflow_training.data.patch import Patch


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


TrainingPrecision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True)
class StepResult:
    """Loss of a step (sum and by output), and the predictions, which hold their gradients if these are requested."""

    loss: Tensor
    losses: dict[str, float]
    predictions: Mapping[str, Tensor]


@dataclass(frozen=True)
class Gradients:
    """How gradients become a step; the defaults are for one process and one patch.

    batch_size: patches of one forward pass. clip: largest norm of the gradient. scaler: of losses at fp16. exchange: a
    switch, on while the gradients of a backward pass are averaged over the processes. combine: called with the result
    of this process before the optimizer's step; returns that of all processes, or raises in all of them.
    """

    batch_size: int = 1
    clip: float | None = None
    scaler: torch.amp.GradScaler | None = None
    exchange: Callable[[bool], None] = lambda _on: None
    combine: Callable[[StepResult], StepResult] | None = None


def forward_losses(network: nn.Module, patches: Sequence[Patch], precision: TrainingPrecision) -> list[StepResult]:
    """One forward pass of all patches; of each its predictions cropped to the targets, and its loss (with its graph).

    Each patch has a loss of its own, over its own voxels that count: their mean does not depend on who shares a pass.
    """
    raw = patches[0].raw if len(patches) == 1 else torch.cat([patch.raw for patch in patches])
    with _numbers(raw.device, precision):
        predictions = network(raw)
    results = []
    for number, patch in enumerate(patches):
        own = {name: value[number : number + 1] for name, value in predictions.items()}
        cropped = {name: crop_centre(own[name], patch.targets[name].shape[2:]) for name in patch.targets}
        loss, losses = total_loss(cropped, patch.targets, patch.weights)
        results.append(StepResult(loss=loss, losses=losses, predictions={**own, **cropped}))
    return results


def train_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    patches: Sequence[Patch],
    precision: TrainingPrecision,
    *,
    keep_gradients: bool = False,
    gradients: Gradients | None = None,
) -> StepResult:
    """One optimizer step with the mean of the patches' gradients; with keep_gradients the predictions keep `.grad`.

    Returns the result of the last patch, with losses averaged over the patches.  If a loss is not finite there is no
    optimizer step: a single process returns the result; among several processes, gradients.combine raises.
    """
    gradients = gradients or Gradients()
    optimizer.zero_grad(set_to_none=True)
    results: list[StepResult] = []
    for begin in range(0, len(patches), gradients.batch_size):
        of_pass = patches[begin : begin + gradients.batch_size]
        last = begin + len(of_pass) == len(patches)
        gradients.exchange(last)
        found = forward_losses(network, of_pass, precision)
        kept = [found[-1].predictions[name] for name in of_pass[-1].targets] if keep_gradients and last else []
        for prediction in kept:
            prediction.retain_grad()
        for result in found:
            if gradients.combine is None and not torch.isfinite(result.loss):
                return result
        loss = torch.stack([result.loss for result in found]).sum()
        _backward(loss / len(patches), gradients.scaler)
        if gradients.scaler is not None:
            for prediction in kept:
                _unscale(prediction.grad, gradients.scaler)
        results += [replace(result, loss=result.loss.detach()) for result in found]
    mean = _mean(results)
    if gradients.combine is not None:
        mean = gradients.combine(mean)
    _optimize(network, optimizer, gradients)
    return mean


def _mean(results: Sequence[StepResult]) -> StepResult:
    """The last result, with the mean losses of all."""
    if len(results) == 1:
        return results[0]
    names = results[0].losses
    return replace(results[-1], losses={name: sum(r.losses[name] for r in results) / len(results) for name in names})


def _backward(loss: Tensor, scaler: torch.amp.GradScaler | None) -> None:
    scaled = loss if scaler is None else scaler.scale(loss)
    scaled.backward()  # type: ignore[no-untyped-call]


def _unscale(gradient: Tensor | None, scaler: torch.amp.GradScaler) -> None:
    """Undo the scaling of a stored gradient; the optimizer's step does it for those of the weights."""
    if gradient is not None:
        gradient.div_(scaler.get_scale())


def _optimize(network: nn.Module, optimizer: torch.optim.Optimizer, gradients: Gradients) -> None:
    if gradients.scaler is not None:
        gradients.scaler.unscale_(optimizer)
    if gradients.clip is not None:
        nn.utils.clip_grad_norm_([p for p in network.parameters() if p.grad is not None], gradients.clip)
    if gradients.scaler is None:
        optimizer.step()
    else:
        gradients.scaler.step(optimizer)
        gradients.scaler.update()


def _numbers(device: torch.device, precision: TrainingPrecision) -> AbstractContextManager[object]:
    if precision == "fp16":
        return torch.autocast(device.type, dtype=torch.float16)
    return autocast(device, precision)


class AveragedWeights:
    """Exponential moving average of the weights of `network`, on its device: usually better on unseen data.

    After step t: average <- d * average + (1 - d) * weights, d = min(decay, (1 + t) / (10 + t)).  The small d of the
    first steps quickly removes the random initial weights.  Validation and the bundle use the average; training
    continues from the weights themselves, which resume.pt stores.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._network, self._decay = network, decay
        self._average: dict[str, Tensor] = {}
        self.begin()

    def begin(self) -> None:
        """Set the average to the weights of the network."""
        self._average = _copies(self._network)

    @torch.no_grad()
    def update(self, iteration: int) -> None:
        """Include the weights after step `iteration` (1, 2, ...)."""
        decay = min(self._decay, (1 + iteration) / (10 + iteration))
        for name, value in self._network.state_dict().items():
            self._average[name].lerp_(value, 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the network the averaged weights within the block; restore its own afterwards."""
        own = _copies(self._network)
        self._network.load_state_dict(self._average)
        try:
            yield
        finally:
            self._network.load_state_dict(own)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
