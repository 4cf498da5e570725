"""An authenticating proxy for daisy's server, which has no authentication and so listens on loopback only.

    worker's machine                                          coordinator's machine
    daisy.Client --> 127.0.0.1 (worker_proxy) ==== network ==== coordinator_proxy --> 127.0.0.1 daisy's server

1. The coordinator sends a random number. The worker answers with another one, and proves with an HMAC of both that it
   has the secret of the session.
2. The coordinator proves the same, so that no worker accepts blocks from another program. The secret is never sent.
3. From then on both proxies forward bytes until one side closes its connection.

The secret is a file in the session's folder on shared storage, readable to the user of the run alone. The forwarded
bytes are not encrypted: they hold block numbers only.
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

LOG = logging.getLogger("lsdflow.proxy")
LOOPBACK = "127.0.0.1"
GREETING = b"lsdflow proxy 1\n"
NONCE_BYTES = PROOF_BYTES = 32
HANDSHAKE_SECONDS = 10.0
READ_BYTES = 1 << 16
WAITING_WORKERS = 1024
# A machine that failed does not close its connections: idle time, interval and number of the system's probes.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def write_secret(folder: Path) -> None:
    """Write a new secret to the folder of a session, readable by this user only."""
    descriptor = os.open(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(NONCE_BYTES))


def read_secret(folder: Path) -> bytes:
    """The secret of a session. Raises FileNotFoundError if the session has ended."""
    return (folder / "secret").read_text().encode()


def remove_secret(folder: Path) -> None:
    """Remove the secret of a session that has ended."""
    (folder / "secret").unlink(missing_ok=True)


async def coordinator_proxy(host: str, daisy_port: int, secret: bytes, opened: Callable[[int], None]) -> None:
    """Forward workers that have the secret to `daisy_port` on loopback, until the server there has ended.

    opened: called with the port of the proxy on `host`.
    """
    # One socket, because a name with several addresses would get a different port for each.
    listener = socket.create_server((host, 0), backlog=WAITING_WORKERS)
    server = await asyncio.start_server(lambda r, w: _served(_accept((r, w), daisy_port, secret), w), sock=listener)
    async with server:
        opened(int(server.sockets[0].getsockname()[1]))
        while await asyncio.to_thread(is_listening, LOOPBACK, daisy_port, 5):
            await asyncio.sleep(1)


@contextmanager
def worker_proxy(host: str, port: int, secret: bytes) -> Iterator[int]:
    """A port on loopback that forwards the processes of this user to the coordinator's proxy at `host`:`port`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="proxy")
    thread.start()
    starting = asyncio.start_server(lambda r, w: _served(_connect((r, w), host, port, secret), w), LOOPBACK, 0)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def is_listening(host: str, port: int, timeout_s: float) -> bool:
    """True if a server accepts connections at `host`:`port`."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _served(connection: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
    """Run a connection; it ends without an error if its server is closed or one of its sides is lost."""
    try:
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await connection
    finally:
        writer.close()


async def _accept(worker: Connection, daisy_port: int, secret: bytes) -> None:
    """The coordinator's side of a connection."""
    reader, writer = worker
    nonce, answer = secrets.token_bytes(NONCE_BYTES), b""
    writer.write(GREETING + nonce)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            answer = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return  # A worker checked whether the port is open.
    except TimeoutError:
        pass
    worker_nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"worker", nonce, worker_nonce)):
        peer = writer.get_extra_info("peername")
        LOG.warning("refused: a connection from %s that does not know the secret of this session", peer)
        return
    writer.write(_proof(secret, b"coordinator", nonce, worker_nonce))
    await _forward(worker, await asyncio.open_connection(LOOPBACK, daisy_port))


async def _connect(client: Connection, host: str, port: int, secret: bytes) -> None:
    """The worker's side of a connection."""
    if not _is_of_this_user(client[1]):
        LOG.warning("refused: a connection of another user of this machine")
        return
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            coordinator = await _authenticated_connection(host, port, secret)
    except (OSError, asyncio.IncompleteReadError) as error:
        LOG.warning("no connection to the coordinator at %s:%d: %s", host, port, error or type(error).__name__)
        return
    await _forward(client, coordinator)


async def _authenticated_connection(host: str, port: int, secret: bytes) -> Connection:
    reader, writer = await asyncio.open_connection(host, port)
    greeting = await reader.readexactly(len(GREETING))
    coordinator_nonce = await reader.readexactly(NONCE_BYTES)
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(nonce + _proof(secret, b"worker", coordinator_nonce, nonce))
    proof = await reader.readexactly(PROOF_BYTES)
    if greeting != GREETING or not hmac.compare_digest(proof, _proof(secret, b"coordinator", coordinator_nonce, nonce)):
        writer.close()
        raise ConnectionRefusedError("the server there does not know the secret of this session")
    return reader, writer


def _proof(secret: bytes, role: bytes, coordinator_nonce: bytes, worker_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + coordinator_nonce + worker_nonce, "sha256")


async def _forward(one: Connection, other: Connection) -> None:
    """Forward bytes in both directions until one side closes its connection."""
    for _, writer in (one, other):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    flows = {asyncio.create_task(_copy(one[0], other[1])), asyncio.create_task(_copy(other[0], one[1]))}
    try:
        await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for flow in flows:
            flow.cancel()
        for _, writer in (one, other):
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while read := await reader.read(READ_BYTES):
            writer.write(read)
            await writer.drain()


def _is_of_this_user(writer: asyncio.StreamWriter) -> bool:
    """Whether a process of this user is at the other end of a connection on loopback, by the kernel's socket table."""
    ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (_port(fields[1]), _port(fields[2])) == ports:
            return int(fields[7]) == os.getuid()
    return False


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
