"""Build what a training needs: the network on its device, shared among the processes, and its optimizer."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.errors import OutputConflict
from lsdflow_network.bundle import load_bundle
from lsdflow_network.composition import AcrLsd
from lsdflow_network.precision import choose_precision, memory_format
from lsdflow_network.unet import UNet
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.drawn_shares import draw_shares, is_empty
from lsdflow_training.processes.sharding import compute_again, set_exchange, share, shares_of
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.step import Gradients, TrainingPrecision

LOG = logging.getLogger("lsdflow.training")


@dataclass(frozen=True)
class FrozenLsd:
    """The LSD network of an AcrLSD training."""

    bundle: Bundle
    network: nn.Module


def new_network(settings: TrainingSettings, *, empty: bool = False) -> UNet:
    """The network to train, with random weights or the given initial weights.

    empty: it has shapes and no weights (torch's meta device); `build_network` draws or reads those of this process.
    """
    with torch.device("meta") if empty else nullcontext():
        network = UNet(settings.unet, settings.outputs)
    if not empty:
        _begin_with_given(network, settings)
    return network


def _begin_with_given(network: UNet, settings: TrainingSettings) -> None:
    """Load the initial weights, if there are any, or the shares of them that this process holds."""
    if settings.initial is None:
        return
    bundle, weights = load_bundle(settings.initial.folder)
    if bundle.weights_sha256 != settings.initial.sha256:
        raise OutputConflict("the weights to begin with were changed meanwhile", where=settings.initial.folder)
    network.load_state_dict(shares_of(weights, network))
    LOG.info("begins with the weights of %s", settings.initial.folder)


def build_network(
    settings: TrainingSettings,
    trained: UNet,
    lsd: FrozenLsd | None,
    group: Group,
    device: torch.device,
    precision: TrainingPrecision,
) -> tuple[nn.Module, Gradients]:
    """The network from raw to the outputs, on the device, and how its gradients become a step.

    The weights of `trained` are shared among the processes; each process holds all of an LSD network before it. An
    empty network (`new_network`) must be shared: each process draws the weights of its shares only.
    """
    if settings.step.checkpoint_activations:
        compute_again(trained)
    empty = is_empty(trained)
    if not empty:
        trained.to(device).to(memory_format=memory_format(device))  # type: ignore[call-overload]
    network = share(trained, group, settings.distribution, device)
    if empty:
        draw_shares(trained, "cpu" if settings.distribution.cpu_offload else device)
        _begin_with_given(trained, settings)
    scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
    step = settings.step
    gradients = Gradients(step.batch_size, step.clip_gradient, scaler=scaler, exchange=set_exchange(network))
    if lsd is not None:
        before = lsd.network.to(device).to(memory_format=memory_format(device))  # type: ignore[call-overload]
        network = AcrLsd(before, lsd.bundle.unet, network, settings.unet)
    return network.train(), gradients


def training_precision(settings: TrainingSettings, group: Group, device: torch.device) -> TrainingPrecision:
    """The precision to train with, the same in all processes: scaled gradients cannot be averaged with unscaled ones.

    auto: bf16 if all devices support it; else fp16 with scaled losses on GPUs, float32 on CPUs.
    """
    if settings.precision == "fp16":
        return "fp16"
    chosen = choose_precision(device, settings.precision)
    if settings.precision != "auto" or all(row[0] for row in group.gather([float(chosen == "bf16")])):
        return chosen
    if device.type != "cuda":
        return "float32"
    LOG.info("no bf16 on GPUs before Ampere: training at fp16 with scaled losses")
    return "fp16"


def device_of(name: str, group: Group) -> torch.device:
    """The device of this process. With several processes on a node, "cuda" is the GPU of its local rank."""
    if name != "cuda" or group.alone:
        return torch.device(name)
    device = torch.device("cuda", group.ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def make_optimizer(settings: TrainingSettings, network: nn.Module) -> torch.optim.Adam:
    """Adam or AdamW, as the settings say."""
    schedules, step = settings.schedules, settings.step
    kind = torch.optim.AdamW if step.optimizer == "adamw" else torch.optim.Adam
    return kind(network.parameters(), lr=schedules.learning_rate, betas=schedules.betas, weight_decay=step.weight_decay)
