"""Training in a group of one process: what DDP, FSDP and offloading cost, and that they take the same steps.

NCCL on a GPU, Gloo on a CPU. A group of several processes needs several GPUs; this shows that the code paths run there.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Vox3
from lsdflow_network.precision import choose_precision, memory_format
from lsdflow_network.shapes import output_shape_vox
from lsdflow_network.unet import UNet
from lsdflow_training.data.patch import Patch
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.processes.rendezvous import sockets_of
from lsdflow_training.processes.sharding import share
from lsdflow_training.settings import Distribution
from lsdflow_training.step import train_step

WARM_UP = 3
LEARNING_RATE = 1e-4


class GroupOfOne(Group):
    """One process that shares its network as if there were others."""

    @property
    def alone(self) -> bool:
        """Never."""
        return False


def one_rank_rows(device: str, spec: UNetSpec, input_vox: Vox3, rounds: int) -> Iterator[tuple[str, str, str, str]]:
    """What, precision, rate with memory, and the loss against that of the plain network, for each way of sharing."""
    fsdp = Distribution(strategy="fsdp", min_num_params=1)
    ways: dict[str, Distribution | None] = {"plain": None, "DDP": Distribution(), "FSDP": fsdp}
    if device.startswith("cuda"):
        ways["FSDP, cpu_offload"] = replace(fsdp, cpu_offload=True)
    torch.manual_seed(0)
    made = UNet(spec, {"lsds": 10})
    where = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    precision: Any = choose_precision(where)
    plain_loss: float | None = None
    with process_group(where) as backend:
        for name, how in ways.items():
            network = copy.deepcopy(made)
            rate, gib, loss = measured(network, how, _patch(where, spec, input_vox), precision, rounds)
            plain_loss = loss if plain_loss is None else plain_loss
            what = name if how is None else f"{name}, {backend}, 1 process"
            yield what, precision, f"{rate:.3g} it/s{gib}", f"loss {loss:.6f}, apart {abs(loss - plain_loss):.1e}"


@contextmanager
def process_group(device: torch.device) -> Iterator[str]:
    """A group of this process; the name of what carries its gradients."""
    sockets_of(Ranks())
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield "NCCL" if cuda else "Gloo"
    finally:
        dist.destroy_process_group()


def measured(
    network: UNet, how: Distribution | None, patch: Patch, precision: Any, rounds: int
) -> tuple[float, str, float]:
    """(Iterations per second, peak memory as text, the loss after all steps)."""
    device = patch.raw.device
    sharded = how is not None and how.sharded
    memory = torch.contiguous_format if sharded else memory_format(device)
    network.to(device).to(memory_format=memory)  # type: ignore[call-overload]
    called: nn.Module = network if how is None else share(network, GroupOfOne(), how, device)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = 0.0
    for number in range(WARM_UP + rounds):
        if number == WARM_UP:
            _finish(device)
            begin = time.perf_counter()
        result = train_step(called, optimizer, [patch], precision)
    _finish(device)
    seconds = time.perf_counter() - begin
    gib = f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if device.type == "cuda" else ""
    return rounds / seconds, gib, float(result.loss)


def _patch(device: torch.device, spec: UNetSpec, input_vox: Vox3) -> Patch:
    draw = torch.Generator().manual_seed(0)
    raw = torch.rand(1, 1, *input_vox, generator=draw).to(device).contiguous(memory_format=memory_format(device))
    target = torch.rand(1, 10, *output_shape_vox(spec, input_vox), generator=draw).to(device)
    return Patch(raw, {"lsds": target}, {"lsds": torch.ones_like(target)})


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
