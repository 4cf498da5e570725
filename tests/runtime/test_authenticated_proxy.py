"""The proxy before daisy's port: whoever knows the secret of the session is forwarded, and nobody else."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lsdflow_runtime.engine.authenticated_proxy import (
    GREETING,
    LOOPBACK,
    coordinator_proxy,
    read_secret,
    remove_secret,
    worker_proxy,
    write_secret,
)

SECRET, OTHER_SECRET = b"k" * 64, b"o" * 64
ELSEWHERE = "127.0.0.2"


class Inner:
    """Replaces daisy: answers every byte with the next one, and keeps what came."""

    def __init__(self) -> None:
        self.came = b""
        self.server = socket.create_server((LOOPBACK, 0))
        self.port = int(self.server.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self.server.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while (got := connection.recv(1000)) and got != b"end":
                self.came += got
                connection.sendall(bytes(b + 1 for b in got))

    def close(self) -> None:
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


@pytest.fixture
def inner() -> Iterator[Inner]:
    server = Inner()
    yield server
    server.close()


@pytest.fixture
def proxy(inner: Inner) -> Iterator[int]:
    """Port of a proxy before `inner`; it ends with it."""
    opened: list[int] = []
    thread = threading.Thread(
        target=lambda: asyncio.run(coordinator_proxy(ELSEWHERE, inner.port, SECRET, opened.append)), daemon=True
    )
    thread.start()
    _wait(lambda: bool(opened))
    yield opened[0]
    inner.close()
    thread.join(20)
    assert not thread.is_alive(), "the proxy outlives its server"


def _wait(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def _all_of(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    got = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(1000):
            got += piece
    return got


def test_who_knows_the_secret_is_forwarded_in_both_directions_until_one_side_ends(inner: Inner, proxy: int) -> None:
    with worker_proxy(ELSEWHERE, proxy, SECRET) as port:
        first, second = (socket.create_connection((LOOPBACK, port)) for _ in range(2))
        with first, second:
            for connection, text in ((first, b"abc"), (second, b"123"), (first, b"d")):
                connection.sendall(text)
                assert connection.recv(1000) == bytes(b + 1 for b in text)
            first.sendall(b"end")
            assert _all_of(first) == b""
            second.sendall(b"4")
            assert second.recv(1000) == b"5"


def test_a_proxy_at_a_name_has_one_port_at_an_address_of_it(inner: Inner) -> None:
    opened: list[int] = []

    def open_it(port: int) -> None:
        opened.append(port)
        socket.create_connection(("localhost", port)).close()
        inner.close()

    asyncio.run(coordinator_proxy("localhost", inner.port, SECRET, open_it))
    assert len(opened) == 1


def test_many_bytes_arrive_in_order(inner: Inner, proxy: int) -> None:
    text = bytes(range(200)) * 5000
    with worker_proxy(ELSEWHERE, proxy, SECRET) as port, socket.create_connection((LOOPBACK, port)) as connection:
        threading.Thread(target=connection.sendall, args=(text,), daemon=True).start()
        got = b""
        while len(got) < len(text):
            got += connection.recv(1 << 16)
    assert got == bytes(b + 1 for b in text)


def test_another_secret_is_refused_and_reported(inner: Inner, proxy: int, caplog: pytest.LogCaptureFixture) -> None:
    with worker_proxy(ELSEWHERE, proxy, OTHER_SECRET) as port, socket.create_connection((LOOPBACK, port)) as connection:
        connection.sendall(b"abc")
        assert _all_of(connection) == b""
    assert inner.came == b""
    assert "does not know the secret" in caplog.text


@pytest.mark.parametrize("text", [b"x" * 64, b"x" * 64 + b"abc", b"\x00\x01" * 500, b"short"])
def test_a_stranger_learns_a_greeting_and_reaches_nothing(
    inner: Inner, proxy: int, text: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lsdflow_runtime.engine.authenticated_proxy.HANDSHAKE_SECONDS", 0.5)
    with socket.create_connection((ELSEWHERE, proxy)) as connection:
        connection.sendall(text)
        got = _all_of(connection)
    assert got.startswith(GREETING)
    assert len(got) == len(GREETING) + 32
    assert inner.came == b""
    _wait(lambda: "refused: a connection" in caplog.text)


def test_a_recorded_handshake_does_not_open_the_proxy_again(inner: Inner, proxy: int) -> None:
    """A proof holds for the number that the proxy chose for this connection."""
    heard: list[bytes] = []
    listener = socket.create_server((ELSEWHERE, 0))

    def overhear() -> None:
        near, far = listener.accept()[0], socket.create_connection((ELSEWHERE, proxy))
        with near, far:
            near.sendall(far.recv(1000))
            heard.append(near.recv(1000))
            far.sendall(heard[0])
            near.sendall(far.recv(1000))
            heard.append(near.recv(1000))

    threading.Thread(target=overhear, daemon=True).start()
    with listener, worker_proxy(ELSEWHERE, listener.getsockname()[1], SECRET) as port:
        with socket.create_connection((LOOPBACK, port)) as connection:
            connection.sendall(b"abc")
            _wait(lambda: len(heard) == 2)
        with socket.create_connection((ELSEWHERE, proxy)) as again:
            again.sendall(heard[0] + heard[1])
            assert len(_all_of(again)) == len(GREETING) + 32
    assert inner.came == b""


def test_a_worker_speaks_to_nobody_who_does_not_know_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[bytes] = []
    false = socket.create_server((ELSEWHERE, 0))

    def pretend() -> None:
        connection = false.accept()[0]
        with connection:
            connection.sendall(GREETING + b"n" * 32)
            connection.recv(64, socket.MSG_WAITALL)
            connection.sendall(b"p" * 32)
            heard.append(_all_of(connection))

    threading.Thread(target=pretend, daemon=True).start()
    with false, worker_proxy(ELSEWHERE, false.getsockname()[1], SECRET) as port:
        with socket.create_connection((LOOPBACK, port)) as connection:
            connection.sendall(b"abc")
            assert _all_of(connection) == b""
        _wait(lambda: bool(heard))
    assert heard == [b""]
    assert "does not know the secret of this session" in caplog.text


def test_another_user_of_the_worker_machine_is_refused_by_its_proxy(
    inner: Inner, proxy: int, caplog: pytest.LogCaptureFixture
) -> None:
    program = (
        "import encodings.idna, os, socket, sys\n"
        "if not os.getuid(): os.setuid(65534)\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "s.sendall(b'abc')\n"
        "try: print(s.recv(10))\n"
        "except ConnectionResetError: print(b'')"
    )
    with worker_proxy(ELSEWHERE, proxy, SECRET) as port:
        done = subprocess.run(
            [sys.executable, "-c", program, str(port)], capture_output=True, text=True, check=False, timeout=600
        )
    may_become_another = os.getuid() == 0
    assert (inner.came, done.stdout.strip()) == ((b"", "b''") if may_become_another else (b"abc", "b'bcd'")), (
        done.stderr
    )
    assert ("another user" in caplog.text) == may_become_another


def test_a_probe_of_the_port_is_not_reported(inner: Inner, proxy: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        socket.create_connection((ELSEWHERE, proxy)).close()
    with worker_proxy(ELSEWHERE, proxy, SECRET) as port, socket.create_connection((LOOPBACK, port)) as connection:
        connection.sendall(b"a")
        assert connection.recv(10) == b"b"
    assert caplog.text == ""


def test_a_secret_is_for_this_user_alone_and_never_the_same(tmp_path: Path) -> None:
    found = set()
    for name in "ab":
        (tmp_path / name).mkdir()
        write_secret(tmp_path / name)
        assert (tmp_path / name / "secret").stat().st_mode & 0o777 == 0o600
        found.add(read_secret(tmp_path / name))
        with pytest.raises(FileExistsError):
            write_secret(tmp_path / name)
        remove_secret(tmp_path / name)
        assert not (tmp_path / name / "secret").exists()
    assert {len(secret) for secret in found} == {64}
    assert len(found) == 2
