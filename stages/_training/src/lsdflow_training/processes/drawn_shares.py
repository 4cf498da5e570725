"""The first weights of a network that no process ever holds whole: each keeps what it needs of the same draw.

        torch makes the layers      1  2  3 ...     it draws weights that are not used, but they move the random state
        the network draws its own   1  2  3 ...     in pieces of PIECE numbers, of which a process keeps its share

Numbers drawn in pieces are those drawn at once: torch makes normal numbers on a CPU in groups of 16, and draws the last
16 again if the number of all is no multiple of it. tests/distributed/test_sharing.py compares the bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from lsdflow_network.unet import UNet, deviation_of_weights
from lsdflow_training.processes.sharding import share_here

PIECE = 1 << 20  # a multiple of 16


def is_empty(network: UNet) -> bool:
    """True if the network has shapes and no weights."""
    return next(network.parameters()).is_meta


def draw_shares(network: UNet, device: torch.device | str) -> None:
    """Give a shared, empty network the weights that `UNet(...)` draws; each process keeps its shares on `device`."""
    network.to_empty(device=device)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv3d | nn.ConvTranspose3d)]
    for parameter in (parameter for layer in layers for parameter in layer.parameters(recurse=False)):
        for _, piece in _pieces(parameter.numel()):
            piece.uniform_()
    with torch.no_grad():
        for layer in layers:
            _draw_share(layer.weight, deviation_of_weights(layer))
            if layer.bias is not None:
                share_here(layer.bias).zero_()


def _draw_share(weight: Tensor, deviation: float) -> None:
    """Draw all of a weight, and keep the share of this process: whole rows, one after the other."""
    here, begin = share_here(weight).view(-1), 0
    if isinstance(weight, DTensor):
        rows = torch.arange(len(weight), device=weight.device)
        own = distribute_tensor(rows, weight.device_mesh, weight.placements, src_data_rank=None).to_local()
        begin = int(own[0]) * (weight.numel() // len(weight)) if len(own) else 0
    for at, piece in _pieces(weight.numel()):
        piece.normal_(0, deviation)
        first, last = max(at, begin), min(at + len(piece), begin + len(here))
        if first < last:
            here[first - begin : last - begin] = piece[first - at : last - at].to(here.device)


def _pieces(count: int) -> Iterator[tuple[int, Tensor]]:
    """Buffers for `count` numbers on the CPU, each with the index of its first; the last has at least 16 if it can."""
    buffer = torch.empty(min(count, PIECE + 16))
    at = 0
    while at < count:
        length = count - at if count - at <= PIECE + 16 else PIECE
        yield at, buffer[:length]
        at += length
