"""The database of the scheduler, with a real mongod on loopback: nobody gets in without the password of a 0600 file."""

from __future__ import annotations

import getpass
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure


@pytest.fixture(scope="module")
def files(azure: Path) -> Path:
    return azure / "specs" / "scheduler" / "cluster-init" / "files"


def _bash(files: Path, line: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = f'source "$1"; shift; {line}'
    command = ["bash", "-c", script, "bash", str(files / "mongod.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Scheduler:
    """Disk, share and mongod of a scheduler, in a folder, on loopback."""

    def __init__(self, folder: Path, files: Path, binary: Path, port: int) -> None:
        self.files, self.binary, self.port = files, binary, port
        self.disk, self.uri_file = folder / "disk", folder / "share" / "lsdflow" / "secrets" / "mongo.uri"
        self.secrets = self.disk / "secrets"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for name in ("db", "log"):
            (self.disk / name).mkdir(parents=True, exist_ok=True)
        done = _bash(
            self.files, 'make_secrets "$1"; mongod_config 127.0.0.1 "$2" "$3" 0.25', self.secrets, self.port, self.disk
        )
        assert done.returncode == 0, done.stderr
        config = self.disk / "mongod.conf"
        config.write_text(done.stdout)
        self.process = subprocess.Popen([self.binary, "--config", config], stdout=subprocess.DEVNULL)

    def setup(self, address: str = "127.0.0.1") -> subprocess.CompletedProcess[str]:
        options = ["--secrets", self.secrets, "--address", address, "--port", self.port]
        options += ["--uri-file", self.uri_file, "--owner", getpass.getuser()]
        command = [sys.executable, self.files / "mongo_setup.py", *options]
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, timeout=600)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(timeout=600)

    @property
    def uri(self) -> str:
        return self.uri_file.read_text().strip()


@pytest.fixture(scope="module")
def scheduler(
    tmp_path_factory: pytest.TempPathFactory, files: Path, mongod_for_tests: ModuleType
) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    made = Scheduler(folder, files, mongod_for_tests.mongod_binary(), mongod_for_tests.free_port())
    made.start()
    try:
        done = made.setup()
        assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.stop()


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except OperationFailure as error:
        return error.code in (13, 18)
    return False


@pytest.mark.proves("DBS-02")
def test_without_a_password_nothing_is_read_written_or_listed(scheduler: Scheduler) -> None:
    with MongoClient("127.0.0.1", scheduler.port, directConnection=True) as stranger:
        assert _refused(stranger.list_database_names)
        assert _refused(lambda: stranger["experiment"]["nodes"].insert_one({"id": 1}))
        assert _refused(lambda: stranger.admin.command("createUser", "me", pwd="x", roles=["root"]))


def test_the_lab_reads_and_writes_durably_and_administers_nothing(scheduler: Scheduler) -> None:
    with MongoClient(scheduler.uri) as lab:
        nodes = lab["experiment"].get_collection("nodes", write_concern=None)
        nodes.insert_one({"_id": 7})
        assert nodes.find_one({"_id": 7}) == {"_id": 7}
        assert lab.admin.command("hello")["setName"] == "lsdflow"
        assert _refused(lambda: lab.admin.command("createUser", "me", pwd="x", roles=["root"]))
        assert _refused(lambda: lab.admin.command("shutdown"))


def test_secrets_are_readable_by_their_owner_only_and_are_nowhere_else(scheduler: Scheduler) -> None:
    for file in (*scheduler.secrets.iterdir(), scheduler.uri_file):
        assert file.stat().st_mode & 0o777 == 0o600, file
    for folder in (scheduler.secrets, scheduler.uri_file.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    passwords = [(scheduler.secrets / n).read_text().strip() for n in ("admin", "lsdflow", "keyfile")]
    assert len(set(passwords)) == 3
    assert min(map(len, passwords)) >= 40
    elsewhere = (scheduler.disk / "mongod.conf").read_text() + (scheduler.disk / "log" / "mongod.log").read_text()
    elsewhere += Path(f"/proc/{scheduler.process.pid}/cmdline").read_text()
    assert not any(p in elsewhere for p in passwords)


@pytest.mark.proves("DBS-02")
def test_it_listens_on_the_given_address_only(scheduler: Scheduler) -> None:
    wanted = f"{scheduler.port:04X}"
    rows = [r.split() for name in ("tcp", "tcp6") for r in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].split(":")[1] == wanted}
    assert listening == {f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}"}


def test_a_second_boot_changes_nothing_and_a_new_address_is_followed(scheduler: Scheduler) -> None:
    before = scheduler.uri
    secrets = {p.name: p.read_text() for p in scheduler.secrets.iterdir()}
    scheduler.stop()
    scheduler.start()
    assert scheduler.setup().returncode == 0
    assert scheduler.uri == before
    assert {p.name: p.read_text() for p in scheduler.secrets.iterdir()} == secrets
    done = scheduler.setup("localhost")
    assert done.returncode == 0, done.stderr
    assert scheduler.uri == before.replace("@127.0.0.1:", "@localhost:")
    with MongoClient(scheduler.uri) as lab:
        assert lab["experiment"]["nodes"].find_one({"_id": 7}) == {"_id": 7}


def test_a_lost_admin_password_is_reported_not_worked_around(scheduler: Scheduler) -> None:
    admin = scheduler.secrets / "admin"
    kept = admin.read_text()
    try:
        admin.write_text("another\n")
        done = scheduler.setup()
    finally:
        admin.write_text(kept)
    assert done.returncode != 0
    assert "restore" in done.stderr
    assert kept.strip() not in done.stderr


def test_the_smoke_tests_check_distinguishes_a_guarded_server_from_an_open_one(
    azure: Path, scheduler: Scheduler, mongod_for_tests: ModuleType, tmp_path: Path
) -> None:
    def check(uri_file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(azure / "mongo_check.py"), str(uri_file)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert check(scheduler.uri_file).returncode == 0
    wrong = tmp_path / "wrong.uri"
    wrong.write_text(re.sub(r":[^:@]+@", ":wrong@", scheduler.uri))
    assert "AuthenticationFailed" in check(wrong).stderr or "not in with the password" in check(wrong).stderr
    with mongod_for_tests.running_mongod(tmp_path / "open", password=False) as server:
        found = check(server.uri_file("x", tmp_path))
    assert found.returncode != 0
    assert "without a password" in found.stderr


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("7.0.27", 1),
        ("7.0.28", 0),
        ("7.0.45", 0),
        ("8.0.16", 1),
        ("8.0.17", 0),
        ("8.2.2", 1),
        ("6.0.29", 1),
        ("4.4.1", 1),
    ],
)
def test_versions_that_leak_memory_are_refused(files: Path, version: str, safe: int) -> None:
    assert _bash(files, 'version_is_safe "$1"', version).returncode == safe


def test_the_pinned_version_is_safe(azure: Path, files: Path) -> None:
    pins = azure / "specs/default/cluster-init/files/packages.env"
    assert _bash(files, 'source "$1"; version_is_safe "$MONGOD_VERSION"', pins).returncode == 0


@pytest.mark.parametrize(
    ("address", "private"),
    [("10.0.0.4", 0), ("172.16.1.1", 0), ("172.32.1.1", 1), ("192.168.3.4", 0), ("100.64.0.9", 0), ("20.1.2.3", 1),
     ("127.0.0.1", 1), ("11.10.0.0.4", 1), ("", 1)],
)  # fmt: skip
def test_only_private_addresses_are_taken(files: Path, address: str, private: int) -> None:
    assert _bash(files, 'is_private_address "$1"', address).returncode == private
