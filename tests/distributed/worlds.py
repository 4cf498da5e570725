"""Trainings of several processes on this machine, forked from a server that has everything imported."""

from __future__ import annotations

import csv
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lsdflow_contract.checkpoint import Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import StageError
from lsdflow_network.bundle import load_bundle
from lsdflow_training.processes.ranks import Ranks, as_environment, of_local_process
from lsdflow_training.processes.rendezvous import LOOPBACK, read_errors, serve
from lsdflow_training.testing import micro_experiment

STAGE = "train-acrlsd"
OPTIONS = {
    **{"elastic_probability": 0.0, "schedule": "constant", "learning_rate": 1e-3, "snapshot_every": 1000},
    **{"checkpoint_every": 1000, "validation_every": 1000, "peer_timeout_s": 200.0},
}
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "lsdflow_training.trainer",
        "lsdflow_training.processes.launch",
        "lsdflow_train_acrlsd.stage",
        "lsdflow_train_lsd.stage",
    ]
)


NETWORK_LEFT = 101  # an exit code that no training has


def be_process(environment: dict[str, str], arguments: Sequence[str], before: Callable[[], None] | None) -> None:
    """Body of a process of a training; before: called first, to change something in it."""
    os.environ.update(environment)
    from lsdflow_training.processes import launch

    require_network_freed_before_group()
    if before is not None:
        before()
    os._exit(launch.main(arguments))


def require_network_freed_before_group() -> None:
    """Change this process: it ends with NETWORK_LEFT if it still has a wrapped network when it leaves its group.

    Such a network would wait for the threads of the group, which may wait for it: a deadlock that is rare.
    """
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    destroy = distributed.destroy_process_group

    def checked() -> None:
        if any(type(one) is DistributedDataParallel for one in gc.get_objects()):
            os._exit(NETWORK_LEFT)
        destroy()

    distributed.destroy_process_group = checked


@dataclass
class Training:
    """A training in a folder, lived by any number of processes at a time."""

    toml: Path
    errors: dict[int, StageError] = field(default_factory=dict)
    processes: list[BaseProcess] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.toml.parent / "train" / STAGE

    @classmethod
    def made(cls, folder: Path, mode: str = "mtlsd", **options: Any) -> Training:
        """In an experiment of its own, which is made here."""
        return cls(micro_experiment(folder, mode, {**OPTIONS, **options}))

    def start(
        self,
        world: int,
        *overrides: str,
        stage: str = STAGE,
        before: Sequence[Callable[[], None] | None] = (),
        nodes: int = 1,
    ) -> Any:
        """Start the processes, as if on so many nodes; returns the store of their rendezvous."""
        store, port = serve(LOOPBACK, 0, 60.0)
        of_node = [Ranks(rank, nodes, address=LOOPBACK, port=port) for rank in range(nodes)]
        every = [of_local_process(node, world // nodes, rank) for node in of_node for rank in range(world // nodes)]
        hooks = [*before, *[None] * (world - len(before))]
        given = [f"{stage}.{text}" for text in overrides]
        self.processes = [
            FORKS.Process(target=be_process, args=(as_environment(mine), [stage, str(self.toml), *given], hook))
            for mine, hook in zip(every, hooks, strict=True)
        ]
        for process in self.processes:
            process.start()
        return store

    def live(self, world: int, *overrides: str, **how: Any) -> list[int]:
        """Run to the end; returns the exit codes by rank."""
        return self.end(self.start(world, *overrides, **how))

    def end(self, store: Any) -> list[int]:
        """Wait for the processes; none outlives the test."""
        from torch.distributed import PrefixStore

        for process in self.processes:
            process.join(120)
            process.kill()
            process.join()
        self.errors = read_errors(PrefixStore("0", store), range(len(self.processes)))
        return [process.exitcode for process in self.processes]

    def iterations(self) -> list[int]:
        return bundle_iterations(self.folder / "checkpoints")

    def bundle(self, iteration: int) -> Bundle:
        return read_bundle(bundle_folder(self.folder / "checkpoints", iteration))

    def weights(self, iteration: int) -> dict[str, Any]:
        return load_bundle(bundle_folder(self.folder / "checkpoints", iteration))[1]

    def losses(self) -> dict[int, str]:
        with (self.folder / "loss.csv").open() as file:
            return {int(row["iteration"]): row["loss"] for row in csv.DictReader(file) if row["loss"]}
