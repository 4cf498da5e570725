"""The processes of one training: they exchange numbers, and end together if one of them fails.

Numbers are exchanged between the hosts' memories (Gloo), also if gradients are exchanged between GPUs (NCCL). A process
that fails writes the reason to the store of the rendezvous; the connections of the others break, and they end with the
same error.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from lsdflow_contract.errors import InternalError, Interrupted, StageError
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.processes.rendezvous import CONNECTION_ERRORS, error_key, read_errors, rendezvous, sockets_of

LOG = logging.getLogger("lsdflow.training")


@dataclass
class Group:
    """What a process knows of the others; everything is trivial for a single process."""

    ranks: Ranks = field(default_factory=Ranks)
    store: Store | None = None

    @property
    def alone(self) -> bool:
        """True for a training of one process."""
        return self.ranks.world_size == 1

    @property
    def writes(self) -> bool:
        """True for the one process that writes checkpoints, curves, snapshots and the manifest."""
        return self.ranks.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of all processes, by rank. Each process must give the same number of values."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self.alone:
            return [list(values)]
        everyone = [torch.empty_like(mine) for _ in range(self.ranks.world_size)]
        dist.all_gather(everyone, mine)
        return [row.tolist() for row in everyone]

    def wait_for_all(self) -> None:
        """Return when every process has called this."""
        self.gather([0.0])

    def of_rank_0(self, value: float) -> float:
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
                where=f"process {', '.join(map(str, others))} of {self.ranks.world_size}",
                fix="run the same command again to resume from the last checkpoint; if it happens again, check the "
                "memory of these nodes",
            )

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Store the reason of a failure for the others. If a connection broke, raise the reason that they stored."""
        try:
            yield
        except StageError as error:
            self._store_error(error)
            raise
        except RuntimeError as error:
            if self.alone or not _is_of_connection(error):
                self._store_error(InternalError(f"{type(error).__name__}: {str(error).splitlines()[0]}"))
                raise
            reason = self._reason(error)
            self._store_error(reason)
            raise reason from error

    def _store_error(self, error: StageError) -> None:
        if self.store is not None:
            try:
                self.store.set(error_key(self.ranks.rank), json.dumps(error.as_dict()))
            except CONNECTION_ERRORS:
                LOG.debug("no process is left to read: %s", error)

    def _reason(self, broken: RuntimeError) -> StageError:
        stored = read_errors(self.store, range(self.ranks.world_size))
        for rank, error in sorted(stored.items()):
            if rank != self.ranks.rank and not isinstance(error, Interrupted):
                return error
        return Interrupted(
            "another process of the training has ended or does not answer",
            where=f"process {self.ranks.rank} of {self.ranks.world_size}",
            found=str(broken).splitlines()[0],
            fix="run the same command again to resume from the last checkpoint",
        )


@contextmanager
def open_group(ranks: Ranks, device: str, timeout_s: float) -> Iterator[Group]:
    """Join the group of processes, and leave it at the end.

    Raises StoreUnreachable (69) naming the processes that did not join within timeout_s, and what ending_together
    raises.  timeout_s also limits every later wait for another process.
    """
    if ranks.world_size == 1:
        yield Group(ranks)
        return
    sockets_of(ranks)
    store = rendezvous(ranks, timeout_s)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    bound = timedelta(seconds=timeout_s)
    of_group = PrefixStore("group", store)
    dist.init_process_group(backend, store=of_group, rank=ranks.rank, world_size=ranks.world_size, timeout=bound)
    if ranks.rank == 0:
        name, nodes = "nccl" if "nccl" in backend else "gloo", ranks.world_size // ranks.local_world_size
        interface = os.environ.get(f"{name.upper()}_SOCKET_IFNAME", "chosen by it")
        place = f"{ranks.address}:{ranks.port}, interface {interface}"
        LOG.info("%d processes on %d node(s) exchange gradients by %s, at %s", ranks.world_size, nodes, name, place)
    group = Group(ranks, store)
    try:
        with group.ending_together():
            yield group
            group.wait_for_all()
    except BaseException as error:
        _free_locals(error)
        raise
    finally:
        # The wrapped network, a reference cycle, must be freed before the group. Otherwise it is the last owner of the
        # group's threads, and waits for their end with the GIL, which they need to free their tensors: a deadlock.
        gc.collect()
        # This waits without the GIL. A thread that still runs when Python exits may abort the process.
        dist.destroy_process_group()


def _free_locals(error: BaseException | None) -> None:
    """Free the local variables of the functions that an error and its causes have left: the wrapped network."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _is_of_connection(error: RuntimeError) -> bool:
    """Whether the error is of a connection. Gloo reports broken connections and time-outs as plain RuntimeErrors."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "nccl", "connection", "timed out", "connect")
    return any(word in str(error).lower() for word in words)
