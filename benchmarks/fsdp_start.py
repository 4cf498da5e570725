"""Memory that FSDP takes until a network has its first weights: each process draws its shares, or all weights first.

Two processes on the CPU with the network of the profile `standard`; prints the peak of one of them for both ways:

    .venv/training/bin/python benchmarks/fsdp_start.py
"""

from __future__ import annotations

import resource

import torch
from torch import distributed, multiprocessing

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_network.unet import UNet
from lsdflow_training.processes.collectives import Group
from lsdflow_training.processes.drawn_shares import draw_shares
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.processes.rendezvous import LOOPBACK, serve
from lsdflow_training.processes.sharding import share
from lsdflow_training.profiles import PROFILES
from lsdflow_training.settings import Distribution

PROCESSES = 2
WAYS = ("all weights first", "shares only")


def peak_mib() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def begin(rank: int, port: int, way: str) -> None:
    """Make and share the network; the first process prints what it took."""
    store = distributed.TCPStore(LOOPBACK, port, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    profile = PROFILES["standard"]
    spec = UNetSpec(
        in_channels=1,
        num_fmaps=profile.num_fmaps,
        fmap_inc_factor=profile.fmap_inc_factor,
        downsample_factors=profile.downsample_factors,
    )
    group = Group(Ranks(rank, PROCESSES, local_world_size=PROCESSES))
    how, before = Distribution(processes=PROCESSES, strategy="fsdp"), peak_mib()
    with torch.device("meta" if way == WAYS[1] else "cpu"):
        network = UNet(spec, {"affs": 3})
    share(network, group, how, torch.device("cpu"))
    if way == WAYS[1]:
        draw_shares(network, "cpu")
    if rank == 0:
        taken, held = peak_mib() - before, sum(p.numel() for p in network.parameters()) * 4 / PROCESSES / 2**20
        print(f"{way}: {taken:.0f} MiB at the peak, a share is {held:.0f} MiB", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    """Both ways, one after the other."""
    for way in WAYS:
        kept, port = serve(LOOPBACK, 0, 60.0)
        multiprocessing.spawn(begin, (port, way), nprocs=PROCESSES)
        del kept


if __name__ == "__main__":
    main()
