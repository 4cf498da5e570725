"""Rendezvous of the processes of a training: a store of torch at one address, and the errors stored in it.

Each process registers at the store that one process serves, so that missing processes can be named.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from lsdflow_contract.errors import StageError, StoreUnreachable, rebuilt
from lsdflow_training.processes.ranks import Ranks

LOG = logging.getLogger("lsdflow.training")
CONNECTION_ERRORS = (RuntimeError, dist.DistError, ConnectionError)
LOOPBACK = "127.0.0.1"
# A process of the previous attempt, which used the same port, may need SLURM's KillWait (30 s) to end.
PORT_TIMEOUT_S, PORT_PAUSE_S = 60.0, 0.2


def serve(address: str, port: int, timeout_s: float) -> tuple[TCPStore, int]:
    """Serve a store at this address only; port 0 means any free port. Returns the store and its port.

    Raises StoreUnreachable (69) if the port stays in use for PORT_TIMEOUT_S or half of timeout_s: the others wait
    longer than that.
    """
    listening = _listen(address, port, min(PORT_TIMEOUT_S, timeout_s / 2))
    port = listening.getsockname()[1]
    bound = timedelta(seconds=timeout_s)
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=bound, master_listen_fd=listening.detach()
    )
    return store, port


def _listen(address: str, port: int, timeout_s: float) -> socket.socket:
    """A listening socket; if the address is in use, tries again for timeout_s."""
    until = time.monotonic() + timeout_s
    while (found := _try_to_listen(address, port)) is None:
        if time.monotonic() >= until:
            raise _cannot_serve(address, port, os.strerror(errno.EADDRINUSE))
        LOG.debug("%s:%d is in use", address, port)
        time.sleep(PORT_PAUSE_S)
    return found


def _try_to_listen(address: str, port: int) -> socket.socket | None:
    """None if the address is in use. Raises StoreUnreachable for errors that waiting does not solve."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise _cannot_serve(address, port, error.strerror or str(error)) from error
    return listening


def _cannot_serve(address: str, port: int, reason: str) -> StoreUnreachable:
    return StoreUnreachable(
        "distributed rendezvous failed",
        where=f"{address}:{port}",
        found=reason,
        fix="set MASTER_ADDR to an address of this machine and MASTER_PORT to a port that nobody uses",
    )


def connect(ranks: Ranks, timeout_s: float) -> Store:
    """The store of this training, served by rank 0 or a launcher. Raises StoreUnreachable if it does not answer."""
    if ranks.rank == 0 and not ranks.store_runs:
        address = LOOPBACK if ranks.local_world_size == ranks.world_size else ranks.address
        store, _ = serve(address, ranks.port, timeout_s)
        return PrefixStore(ranks.attempt, store)
    try:
        bound = timedelta(seconds=timeout_s)
        found = TCPStore(ranks.address, ranks.port, is_master=False, timeout=bound)
    except CONNECTION_ERRORS as error:
        raise StoreUnreachable(
            "not all processes of the training came",
            where=f"{ranks.address}:{ranks.port}",
            wanted=f"an answer within {timeout_s:g} s",
            found="missing: process 0",
            fix="check the log of its node; can this one reach its address?",
        ) from error
    return PrefixStore(ranks.attempt, found)


def sockets_of(ranks: Ranks) -> None:
    """Let Gloo and NCCL use loopback on one node, else the interface to the first node; a user's choice stays."""
    name = "lo" if ranks.local_world_size == ranks.world_size else interface_towards(ranks.address, ranks.port)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name:
            os.environ.setdefault(variable, name)


def interface_towards(address: str, port: int) -> str:
    """Name of the interface whose address reaches this one; "" if it cannot be found."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port or 1))
        except OSError:
            return ""
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if found[20:24] == own:
                return name
    return ""


def error_key(rank: int) -> str:
    """The key under which the process of this rank stores why it ended."""
    return f"error/{rank}"


def read_errors(store: Store | None, ranks: Iterable[int]) -> dict[int, StageError]:
    """The errors that these ranks stored, as far as the store still answers."""
    stored: dict[int, StageError] = {}
    if store is not None:
        try:
            for rank in ranks:
                if store.check([error_key(rank)]):
                    stored[rank] = rebuilt(json.loads(store.get(error_key(rank))))
        except CONNECTION_ERRORS:
            pass
    return stored


def rendezvous(ranks: Ranks, timeout_s: float) -> Store:
    """The store, once all processes have registered.

    If another process serves the store and leaves too early, it may belong to the previous attempt, which used the
    same port and was ending. So connect again while there is time.
    """
    until = time.monotonic() + timeout_s
    store = connect(ranks, timeout_s)
    while (missing := _register(store, ranks, timeout_s)) != []:
        names = "0, which has been here and has left" if missing is None else ", ".join(map(str, missing))
        error = StoreUnreachable(
            "not all processes of the training came",
            where=f"{ranks.address}:{ranks.port}",
            wanted=f"{ranks.world_size} processes within {timeout_s:g} s",
            found=f"missing: process {names}",
            fix="check the logs of their nodes; can they reach this address (GLOO_SOCKET_IFNAME, a firewall)?",
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


def _register(store: Store, ranks: Ranks, timeout_s: float) -> list[int] | None:
    """Register and wait for all. Returns the ranks that did not register; None if the store itself is gone."""
    keys = [f"here/{rank}" for rank in range(ranks.world_size)]
    try:
        store.set(keys[ranks.rank], "1")
        store.wait(keys, timedelta(seconds=timeout_s))
    except CONNECTION_ERRORS:
        with suppress(*CONNECTION_ERRORS):
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
        return None
    return []
