"""The processes of one training: they meet, agree on numbers, and end together when one of them cannot go on.

Numbers go between the hosts' memories (Gloo) also where gradients go from GPU to GPU (NCCL).  Everyone signs in at a
store that one process serves, so that those who do not come can be named; who fails leaves the reason there, and the
others, whose connection to it breaks, end with the same error.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from lsdflow_contract.errors import InternalError, Interrupted, StageError, StoreUnreachable
from lsdflow_training.processes.meeting import GONE, connect, error_key, read_errors, sockets_of
from lsdflow_training.processes.ranks import Ranks

LOG = logging.getLogger("lsdflow.training")


@dataclass
class Group:
    """What a process knows of the others; alone, all of it is trivial."""

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
        """The values (as many everywhere) of all processes, by rank."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self.alone:
            return [list(values)]
        everyone = [torch.empty_like(mine) for _ in range(self.ranks.world)]
        dist.all_gather(everyone, mine)
        return [row.tolist() for row in everyone]

    def wait_for_all(self) -> None:
        """Return when every process is here."""
        self.gather([0.0])

    def of_first(self, value: float) -> float:
        """The value of the process that writes."""
        return self.gather([value])[0][0]

    def require_same(self, digest: bytes, what: str, copies: int | None = None) -> None:
        """InternalError naming the ranks whose digest is not that of the first.

        copies: ranks r and r + copies, r + 2 copies, ... should have the same; none = all.
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
        """Leave the reason of a failure for the others; a connection that broke is told with the reason of theirs."""
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
    """Meet the others, and part at the end.

    Raises StoreUnreachable (69) naming the processes that did not come within timeout_s, and what ending_together
    raises.  timeout_s also bounds every later wait for another process.
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


def _meet(ranks: Ranks, timeout_s: float) -> Store:
    """The store, when all are here.

    Where somebody else serves it and leaves before, this was perhaps a process of the attempt before, which met at the
    same port and was ending: so connect again, while there is time.
    """
    until = time.monotonic() + timeout_s
    store = connect(ranks, timeout_s)
    while (missing := _sign_in(store, ranks, timeout_s)) != []:
        names = "0, which has been here and has left" if missing is None else ", ".join(map(str, missing))
        error = StoreUnreachable(
            "not all processes of the training came",
            where=f"{ranks.address}:{ranks.port}",
            wanted=f"{ranks.world} processes within {timeout_s:g} s",
            found=f"missing: process {names}",
            fix="look into the logs of their nodes; can they reach this address (GLOO_SOCKET_IFNAME, a firewall)?",
        )
        left_s = until - time.monotonic()
        if missing or left_s <= 0:
            raise error
        try:
            store = connect(ranks, left_s)
        except StoreUnreachable:
            raise error from None
        store.set_timeout(timedelta(seconds=timeout_s))
    return store


def _sign_in(store: Store, ranks: Ranks, timeout_s: float) -> list[int] | None:
    """Everyone waits for everyone. Returns who did not come; None if the store itself is gone."""
    keys = [f"here/{rank}" for rank in range(ranks.world)]
    try:
        store.set(keys[ranks.rank], "1")
        store.wait(keys, timedelta(seconds=timeout_s))
    except GONE:
        with suppress(*GONE):
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
        return None
    return []


def _is_of_connection(error: RuntimeError) -> bool:
    """Gloo tells of broken connections and of its time-out as plain RuntimeErrors."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "nccl", "connection", "timed out", "connect")
    return any(word in str(error).lower() for word in words)
