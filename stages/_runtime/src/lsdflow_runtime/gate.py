"""A gate before daisy's port: daisy asks nobody who they are, so it listens on loopback, and the gate on the network.

    worker's machine                                      coordinator's machine
    daisy client --> 127.0.0.1 (way_in) ===== network ===== gate --> 127.0.0.1 daisy server
1. the gate sends a number of its own choice; the worker answers with another, and proves that it knows the round's key
2. the gate proves the same, so that no worker takes blocks from a stranger; the key itself is never sent
3. from then on both sides pass bytes on, until one of them ends

The key lies in the round's folder on shared storage, readable to the user of the run alone. What is passed on is not
encrypted: it holds block numbers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOG = logging.getLogger("lsdflow.gate")
LOOPBACK = "127.0.0.1"
GREETING = b"lsdflow gate 1\n"
NUMBER_BYTES = PROOF_BYTES = 32
HANDSHAKE_SECONDS = 10.0
PIECE_BYTES = 1 << 16
WAITING_WORKERS = 1024
# A machine that vanished sends no goodbye: the system asks after this time, so often, and gives up.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def make_key(folder: Path) -> None:
    """Leave a new key in a round's folder, for this user alone."""
    descriptor = os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(NUMBER_BYTES))


def read_key(folder: Path) -> bytes:
    """The key of a round."""
    return (folder / "key").read_text().encode()


def remove_key(folder: Path) -> None:
    """Forget the key of a round that is over."""
    (folder / "key").unlink(missing_ok=True)


async def keep_gate(host: str, inner_port: int, key: bytes, opened: Callable[[int], None]) -> None:
    """Pass workers that know the key through to `inner_port` on loopback, until nobody listens there any more.

    `opened` is told the port on `host` where the gate stands.
    """
    # One socket: a name with several addresses would get another port at each.
    listener = socket.create_server((host, 0), backlog=WAITING_WORKERS)
    server = await asyncio.start_server(lambda r, w: _to_its_end(_admit(r, w, inner_port, key)), sock=listener)
    async with server:
        opened(int(server.sockets[0].getsockname()[1]))
        while await asyncio.to_thread(_listens, inner_port):
            await asyncio.sleep(1)


@contextmanager
def way_in(host: str, port: int, key: bytes) -> Iterator[int]:
    """A port on loopback from which the processes of this user come through the gate at `host`:`port`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="way in")
    thread.start()
    starting = asyncio.start_server(lambda r, w: _to_its_end(_lead_through(r, w, host, port, key)), LOOPBACK, 0)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _to_its_end(connection: Coroutine[Any, Any, None]) -> None:
    """A connection that ends together with its server is no error."""
    with contextlib.suppress(asyncio.CancelledError):
        await connection


async def _admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner_port: int, key: bytes) -> None:
    """The gate's side of a connection."""
    peer = writer.get_extra_info("peername")
    try:
        known, silent = await asyncio.wait_for(_is_known(reader, writer, key), HANDSHAKE_SECONDS), False
    except asyncio.IncompleteReadError as error:
        # Whoever only looks whether somebody listens says nothing, and leaves.
        known, silent = False, not error.partial
    except ConnectionError:
        known, silent = False, True
    except (OSError, TimeoutError):
        known, silent = False, False
    if known:
        await _join((reader, writer), inner_port)
        return
    if not silent:
        LOG.warning("refused: a connection from %s that does not know the key of this round", peer)
    writer.close()


async def _is_known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> bool:
    ours = secrets.token_bytes(NUMBER_BYTES)
    writer.write(GREETING + ours)
    theirs = await reader.readexactly(NUMBER_BYTES)
    proof = await reader.readexactly(PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(key, b"worker", ours, theirs)):
        return False
    writer.write(_proof(key, b"coordinator", ours, theirs))
    return True


async def _lead_through(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, key: bytes
) -> None:
    """The worker's side of a connection."""
    if not _is_of_this_user(writer):
        LOG.warning("refused: a connection of another user of this machine")
        writer.close()
        return
    try:
        far = await asyncio.wait_for(_through_the_gate(host, port, key), HANDSHAKE_SECONDS)
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        LOG.warning("no way through the gate at %s:%d: %s", host, port, error or type(error).__name__)
        writer.close()
        return
    await _relay((reader, writer), far)


async def _through_the_gate(host: str, port: int, key: bytes) -> Side:
    reader, writer = await asyncio.open_connection(host, port)
    greeting = await reader.readexactly(len(GREETING))
    theirs = await reader.readexactly(NUMBER_BYTES)
    ours = secrets.token_bytes(NUMBER_BYTES)
    writer.write(ours + _proof(key, b"worker", theirs, ours))
    proof = await reader.readexactly(PROOF_BYTES)
    if greeting != GREETING or not hmac.compare_digest(proof, _proof(key, b"coordinator", theirs, ours)):
        writer.close()
        raise ConnectionRefusedError("whoever listens there does not know the key of this round")
    return reader, writer


def _proof(key: bytes, role: bytes, gate_number: bytes, worker_number: bytes) -> bytes:
    return hmac.digest(key, role + gate_number + worker_number, "sha256")


async def _join(near: Side, port: int) -> None:
    try:
        far = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        near[1].close()
        return
    await _relay(near, far)


async def _relay(near: Side, far: Side) -> None:
    """Pass bytes on in both directions until one side ends."""
    for _, writer in (near, far):
        _keep_alive(writer.get_extra_info("socket"))
    flows = {asyncio.create_task(_pass_on(near[0], far[1])), asyncio.create_task(_pass_on(far[0], near[1]))}
    try:
        await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for flow in flows:
            flow.cancel()
        for _, writer in (near, far):
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 5).close()
    except OSError:
        return False
    return True


def _is_of_this_user(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end of a connection on loopback is a process of this user, by the kernel's table of sockets."""
    theirs, ours = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (_port(fields[1]), _port(fields[2])) == (theirs, ours):
            return int(fields[7]) == os.getuid()
    return False


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
