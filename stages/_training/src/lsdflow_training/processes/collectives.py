"""The processes of one training: they exchange numbers, and end together if one of them fails.

Numbers are exchanged between the hosts' memories (Gloo), also if gradients are exchanged between GPUs (NCCL). A process
that fails writes the reason to the store of the rendezvous; the connections of the others break, and they end with the
same error.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from lsdflow_contract.errors import BadData, InternalError, Interrupted, StageError
from lsdflow_training.failures import TOO_LARGE, StopRequest, batches_of, not_finite
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.processes.rendezvous import GONE, _meet, error_key, read_errors, sockets_of
from lsdflow_training.processes.sharding import all_finite
from lsdflow_training.settings import Recipe
from lsdflow_training.step import StepResult

LOG = logging.getLogger("lsdflow.training")


@dataclass
class Group:
    """What a process knows of the others; everything is trivial for a single process."""

    ranks: Ranks = field(default_factory=Ranks)
    store: Store | None = None

    @property
    def alone(self) -> bool:
        """True for a training of one process."""
        return self.ranks.world == 1

    @property
    def writes(self) -> bool:
        """True for the one process that writes checkpoints, curves, snapshots and the manifest."""
        return self.ranks.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of all processes, by rank. Each process must give the same number of values."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self.alone:
            return [list(values)]
        everyone = [torch.empty_like(mine) for _ in range(self.ranks.world)]
        dist.all_gather(everyone, mine)
        return [row.tolist() for row in everyone]

    def wait_for_all(self) -> None:
        """Return when every process has called this."""
        self.gather([0.0])

    def of_first(self, value: float) -> float:
        """The value of the process that writes."""
        return self.gather([value])[0][0]

    def require_same(self, digest: bytes, what: str, copies: int | None = None) -> None:
        """Raise InternalError naming the ranks whose digest differs from that of the first.

        copies: ranks r and r + copies, r + 2 copies, ... should have the same digest; None = all ranks.
        """
        rows = [bytes(int(v) for v in row) for row in self.gather([float(b) for b in digest])]
        step = copies or 1
        others = [rank for rank, row in enumerate(rows) if row != rows[rank % step]]
        if others:
            raise InternalError(
                f"the processes do not have the same {what}",
                where=f"process {', '.join(map(str, others))} of {self.ranks.world}",
                fix="run the same command again to resume from the last checkpoint; if it comes again, look at the "
                "memory of these nodes",
            )

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Store the reason of a failure for the others. If a connection broke, raise the reason that they stored."""
        try:
            yield
        except StageError as error:
            self._tell(error)
            raise
        except RuntimeError as error:
            if self.alone or not _is_of_connection(error):
                self._tell(InternalError(f"{type(error).__name__}: {str(error).splitlines()[0]}"))
                raise
            reason = self._reason(error)
            self._tell(reason)
            raise reason from error

    def _tell(self, error: StageError) -> None:
        if self.store is not None:
            try:
                self.store.set(error_key(self.ranks.rank), json.dumps(error.as_dict()))
            except GONE:
                LOG.debug("nobody is left to be told: %s", error)

    def _reason(self, broken: RuntimeError) -> StageError:
        told = read_errors(self.store, range(self.ranks.world))
        for rank, error in sorted(told.items()):
            if rank != self.ranks.rank and not isinstance(error, Interrupted):
                return error
        return Interrupted(
            "another process of the training has ended or does not answer",
            where=f"process {self.ranks.rank} of {self.ranks.world}",
            found=str(broken).splitlines()[0],
            fix="run the same command again to resume from the last checkpoint",
        )


@contextmanager
def open_group(ranks: Ranks, device: str, timeout_s: float) -> Iterator[Group]:
    """Join the group of processes, and leave it at the end.

    Raises StoreUnreachable (69) naming the processes that did not join within timeout_s, and what ending_together
    raises.  timeout_s also limits every later wait for another process.
    """
    if ranks.world == 1:
        yield Group(ranks)
        return
    sockets_of(ranks)
    store = _meet(ranks, timeout_s)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    bound = timedelta(seconds=timeout_s)
    meeting = PrefixStore("group", store)
    dist.init_process_group(backend, store=meeting, rank=ranks.rank, world_size=ranks.world, timeout=bound)
    group = Group(ranks, store)
    try:
        with group.ending_together():
            yield group
            group.wait_for_all()
    finally:
        dist.destroy_process_group()


def _is_of_connection(error: RuntimeError) -> bool:
    """Whether the error is of a connection. Gloo reports broken connections and time-outs as plain RuntimeErrors."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "nccl", "connection", "timed out", "connect")
    return any(word in str(error).lower() for word in words)


class Agreement:
    """stopping: a process received a signal, and all know it. minutes: of the first process; None = use own clock."""

    def __init__(self, group: Group, recipe: Recipe) -> None:
        self.group, self.recipe = group, recipe
        self.stopping = False
        self.minutes: float | None = None

    def on_step(
        self, done: Callable[[], tuple[int, int]], stop: StopRequest, minutes: Callable[[], float]
    ) -> Callable[[StepResult], StepResult] | None:
        """A function that turns the result of this process into that of all; None if this is the only process.

        done: returns the current iteration and that of the newest checkpoint.  The function raises BadData in all
        processes if the loss of one is not finite.
        """

        def agree(mine: StepResult) -> StepResult:
            rows = self.group.gather([float(bool(stop)), minutes(), *mine.losses.values()])
            for rank, row in enumerate(rows):
                if not all(map(math.isfinite, row[2:])):
                    raise self.loss_not_finite(*done(), sum(row[2:]), rank)
            self.stopping, self.minutes = any(row[0] for row in rows), rows[0][1]
            means = [sum(row[i] for row in rows) / len(rows) for i in range(2, len(rows[0]))]
            return replace(mine, losses=dict(zip(mine.losses, means, strict=True)))

        return None if self.group.alone else agree

    def stops(self, stop: StopRequest) -> bool:
        """Whether to stop: a single process stops at once, several stop when all have agreed."""
        return bool(stop) if self.group.alone else self.stopping

    def loss_not_finite(self, done: int, saved: int, loss: float, rank: int = 0) -> BadData:
        """The error of the step after `done` iterations, with the process (if there are several) and its batches."""
        batches = self._batches(done + 1)[rank :: self.group.ranks.world]
        process = None if self.group.alone else rank
        return not_finite("loss is", f"loss {loss}", number=done + 1, saved=saved, batches=batches, process=process)

    def require_finite(self, network: nn.Module, done: int, saved: int) -> None:
        """Raise BadData in all processes if the last step, of a finite loss, made a weight NaN or infinite."""
        if not all(row[0] for row in self.group.gather([float(all_finite(network))])):
            raise not_finite("weights are", TOO_LARGE, number=done, saved=saved, batches=self._batches(done))

    def _batches(self, number: int) -> range:
        return batches_of(number, self.recipe.step.effective_batch)
