"""The poller against a metadata server on loopback, with commands of Slurm that write down what they were asked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

MACHINE = "gpulowprio-abc_3"


class Metadata(ThreadingHTTPServer):
    """Answers as the machine's metadata service does; `events` is what is announced, `broken` the refusals to come."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.events: list[dict] = []
        self.broken = 0
        self.asked = 0


class Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        if self.headers.get("Metadata") != "true":
            return self.send_error(400)
        if self.server.broken:
            self.server.broken -= 1
            return self.send_error(500)
        name = self.path.startswith("/metadata/instance/compute/name?")
        self.server.asked += not name
        body = MACHINE if name else json.dumps({"DocumentIncarnation": 1, "Events": self.server.events})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def slurm(commands: Path, tmp_path: Path) -> Path:
    """Fake commands: squeue lists the jobs in `jobs`, scancel and scontrol log their arguments in `asked`."""
    asked, jobs = tmp_path / "asked", tmp_path / "jobs"
    asked.touch()
    for name, rest in (
        ("squeue", f"cat {jobs}"),
        ("scancel", f"[[ ! -e {tmp_path}/obey ]] || : >{jobs}"),
        ("scontrol", ""),
    ):
        log = "" if name == "squeue" else f'echo "{name} $*" >>{asked}\n'
        (commands / name).write_text(f"#!/usr/bin/env bash\n{log}{rest}\n")
        (commands / name).chmod(0o755)
    return tmp_path


def _watcher(azure: Path, metadata: Metadata, commands: Path, *options: str) -> subprocess.Popen[str]:
    program = azure / "specs/execute/cluster-init/files/eviction.py"
    address = f"http://127.0.0.1:{metadata.server_port}"
    command = [sys.executable, str(program), "--metadata", address, "--node", "n7", "--every", "0.1", *options]
    environment = {"PATH": f"{commands}:/usr/bin:/bin", "http_proxy": "http://127.0.0.1:9"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def _watch(azure: Path, metadata: Metadata, commands: Path, *options: str) -> str:
    with _watcher(azure, metadata, commands, *options) as watcher:
        log = watcher.communicate(timeout=600)[1]
    assert watcher.returncode == 0, log
    return log


def _watch_for(asks: int, azure: Path, metadata: Metadata, commands: Path) -> None:
    """Let it ask for events so many times; it runs until it is killed."""
    with _watcher(azure, metadata, commands) as watcher:
        while metadata.asked < asks:
            assert watcher.poll() is None
            time.sleep(0.02)
        watcher.kill()


def _event(kind: str, *machines: str, number: str = "E1") -> dict:
    return {"EventId": number, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(machines)}


@pytest.mark.proves("CLD-07")
def test_jobs_of_an_evicted_node_are_signalled_and_the_node_is_taken_out(
    azure: Path, metadata: Metadata, commands: Path, slurm: Path
) -> None:
    (slurm / "jobs").write_text("41\n42_7\n")
    (slurm / "obey").touch()
    metadata.events = [_event("Preempt", "other_0", MACHINE)]
    _watch(azure, metadata, commands, "--once")
    assert (slurm / "asked").read_text().splitlines() == [
        "scontrol update NodeName=n7 State=POWER_DOWN_ASAP Reason=Azure Preempt E1",
        "scancel --batch --signal=USR2 41 42_7",
    ]


@pytest.mark.proves("TRB-26")
def test_jobs_that_stay_are_requeued_after_the_grace(
    azure: Path, metadata: Metadata, commands: Path, slurm: Path
) -> None:
    (slurm / "jobs").write_text("41\n42_7\n")
    metadata.events = [_event("Preempt", MACHINE)]
    _watch(azure, metadata, commands, "--once", "--grace", "1")
    assert (slurm / "asked").read_text().splitlines()[2:] == ["scontrol requeue 41", "scontrol requeue 42_7"]


def test_events_of_other_machines_and_harmless_ones_are_nobodys_business(
    azure: Path, metadata: Metadata, commands: Path, slurm: Path
) -> None:
    (slurm / "jobs").write_text("41\n")
    metadata.events = [_event("Preempt", "gpulowprio-abc_30"), _event("Freeze", MACHINE)]
    _watch_for(8, azure, metadata, commands)
    assert (slurm / "asked").read_text() == ""


def test_one_event_is_acted_upon_once_however_often_it_is_announced(
    azure: Path, metadata: Metadata, commands: Path, slurm: Path
) -> None:
    (slurm / "jobs").write_text("41\n")
    (slurm / "obey").touch()
    metadata.events = [_event("Preempt", MACHINE)]
    _watch_for(8, azure, metadata, commands)
    assert (slurm / "asked").read_text().count("scancel") == 1


def test_a_metadata_service_that_fails_or_talks_nonsense_is_asked_again(
    azure: Path, metadata: Metadata, commands: Path, slurm: Path
) -> None:
    (slurm / "jobs").write_text("")
    metadata.broken = 3
    metadata.events = [_event("Preempt", MACHINE)]
    log = _watch(azure, metadata, commands, "--once")
    assert log.count("no events") == 3
    assert "signalling 0 jobs" in log
    assert "scancel" not in (slurm / "asked").read_text()


def test_a_slurm_that_is_away_does_not_end_the_watch(azure: Path, metadata: Metadata, commands: Path) -> None:
    for name in ("squeue", "scancel", "scontrol"):
        (commands / name).write_text("#!/usr/bin/env bash\necho 'no controller' >&2; exit 1\n")
        (commands / name).chmod(0o755)
    metadata.events = [_event("Terminate", MACHINE)]
    assert "no controller" in _watch(azure, metadata, commands, "--once")
