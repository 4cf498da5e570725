"""How the processes share a network: each holds all of it (DDP), or a share of its weights (FSDP2).

With shares, each process sums the gradients of its own share. Checkpoints are gathered into the same files as without
shares, so a training can be resumed with another number of processes, or with one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lsdflow_network.unet import UNet
from lsdflow_training.settings import Distribution

if TYPE_CHECKING:
    from lsdflow_training.processes.collectives import Group


def share(network: UNet, group: Group, distribution: Distribution, device: torch.device) -> nn.Module:
    """The network to call: the network itself for one process, else one with gradients averaged over the processes."""
    if group.alone:
        return network
    if not distribution.sharded:
        devices = [device] if device.type == "cuda" else None
        # the network has no buffers, and the name of the option for them differs between versions of torch
        return DistributedDataParallel(network, device_ids=devices)
    mesh = _mesh(group, distribution, device)
    offload = CPUOffloadPolicy() if distribution.cpu_offload else OffloadPolicy()
    after = distribution.reshard != "grad_op"
    for part in levels(network):
        if sum(p.numel() for p in part.parameters()) >= distribution.min_num_params:
            fully_shard(part, mesh=mesh, reshard_after_forward=after, offload_policy=offload)
    fully_shard(network, mesh=mesh, reshard_after_forward=after, offload_policy=offload)
    return network


def levels(network: UNet) -> list[nn.Module]:
    """The modules of each level: downward, upsampling, upward."""
    return [*network.down, *network.up, *network.merge]


def compute_again(network: UNet) -> None:
    """Let each level keep only its input, and recompute the rest in the backward pass."""
    for part in levels(network):
        part.forward = partial(checkpoint, part.forward, use_reentrant=False)


def set_exchange(network: nn.Module) -> Callable[[bool], None]:
    """A switch: exchange gradients in the next backward pass, or not yet (before the last patch of a step)."""
    if isinstance(network, DistributedDataParallel):
        return partial(setattr, network, "require_backward_grad_sync")
    if isinstance(network, FSDPModule):
        return network.set_requires_gradient_sync
    return lambda _on: None


def share_here(tensor: Tensor) -> Tensor:
    """The share of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_weights(network: nn.Module, keep: bool) -> dict[str, Tensor]:
    """state_dict of the network with whole weights, copied to the host's memory; empty unless `keep`.

    All processes call this together. A device holds one whole weight at a time.
    """
    state = network.state_dict()
    return {name: value for name in state if (value := _whole(state[name], keep)) is not None}


def whole_optimizer(optimizer: torch.optim.Optimizer, keep: bool) -> dict[str, Any]:
    """state_dict of the optimizer with whole tensors in the host's memory; without tensors unless `keep`.

    All processes call this together.
    """
    found: dict[str, Any] = optimizer.state_dict()
    state = {
        number: {name: _whole(v, keep) if isinstance(v, Tensor) else v for name, v in of_parameter.items()}
        for number, of_parameter in found["state"].items()
    }
    return {**found, "state": state}


def _whole(tensor: Tensor, keep: bool) -> Tensor | None:
    """A tensor gathered from its shares; a copy on the CPU, or None."""
    gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered.detach().to("cpu", copy=True) if keep else None


def shares_of(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Whole weights cut to the shares of the network in this process."""
    here = network.state_dict()
    return {name: _like(value, here[name]) if name in here else value for name, value in weights.items()}


def shares_of_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Whole state of an optimizer cut to the shares of its parameters in this process."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    cut = {
        number: {name: _like(v, parameters[number]) if isinstance(v, Tensor) else v for name, v in own.items()}
        for number, own in state["state"].items()
    }
    return {**state, "state": cut}


def require_same_weights(network: nn.Module, group: Group, distribution: Distribution) -> None:
    """Raise InternalError naming the ranks whose weights differ from the first; with shares, compare their copies."""
    if group.alone or (distribution.sharded and distribution.reshard != "hybrid"):
        return
    total = hashlib.sha256()
    for value in network.state_dict().values():
        total.update(share_here(value).detach().cpu().contiguous().numpy().tobytes())
    group.require_same(total.digest(), "weights", group.ranks.local_world_size if distribution.sharded else None)


def _like(value: Tensor, here: Tensor) -> Tensor:
    if not isinstance(here, DTensor) or value.ndim == 0:
        return value
    return distribute_tensor(value.to(here.device), here.device_mesh, here.placements, src_data_rank=None)


def _mesh(group: Group, distribution: Distribution, device: torch.device) -> DeviceMesh:
    """One dimension over all processes; hybrid: nodes x processes of a node."""
    world, on_node = group.ranks.world_size, group.ranks.local_world_size
    if distribution.reshard == "hybrid" and on_node < world:
        return init_device_mesh(device.type, (world // on_node, on_node), mesh_dim_names=("copies", "shares"))
    return init_device_mesh(device.type, (world,))


def all_finite(network: nn.Module) -> bool:
    """True if no weight is NaN or infinite; checks only the share of this process if the weights are shared."""
    return all(bool(torch.isfinite(share_here(weight)).all()) for weight in network.parameters())
