"""Metrics never disturb the work; what they cost a run that nobody watches is nothing."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from lsdflow_command.metrics import StageMetrics
from lsdflow_command.monitoring import FORGOTTEN_SECONDS, Address, address_of, hand_over, monitored
from lsdflow_command.progress import MONITOR, Progress
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.experiment import Experiment, load_experiment

from .conftest import eventually, make_experiment


def _files(experiment: Experiment) -> list[str]:
    return sorted(path.name for path in experiment.layout.metrics.glob("*"))


def test_a_folder_that_cannot_be_written_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0.02)
    experiment.layout.metrics.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING), monitored("watched", experiment):
        eventually("it is logged", lambda: caplog.records)
        time.sleep(0.1)
    assert [r.message for r in caplog.records if "metrics cannot be written, the run continues" in r.message] == [
        caplog.records[0].message
    ]
    assert len(caplog.records) == 1


def test_a_port_that_is_taken_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        make_experiment(tmp_path / "a", every_s=0)
        address = f"compute.metrics_address={taken.getsockname()[1]}"
        with monitored("watched", load_experiment(tmp_path / "a", [address])):
            pass
    assert [r.message for r in caplog.records if "are not served at 127.0.0.1" in r.message]


def test_a_short_run_and_one_without_metrics_leave_no_file(tmp_path: Path) -> None:
    for name, every_s in (("short", 10.0), ("off", 0.0)):
        experiment = make_experiment(tmp_path / name, every_s=every_s)
        with monitored("watched", experiment), Progress("watched", 1, "block") as progress:
            progress.advance()
        assert _files(experiment) == []


def test_a_command_does_not_load_the_client_library() -> None:
    code = "import sys, lsdflow_command.app, lsdflow_command.progress; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_error_of_the_work_comes_out_and_its_code_is_the_last_word(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0.02)

    def work() -> None:
        with monitored("watched", experiment):
            eventually("a file", lambda: _files(experiment))
            raise BadData("wrong")

    with pytest.raises(BadData):
        work()
    assert MONITOR.get() is None
    (name,) = _files(experiment)
    assert name == f"watched-{socket.gethostname()}-{os.getpid()}.prom"
    lines = (experiment.layout.metrics / name).read_text().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("lsdflow_stage_exit_code{")] == ["65.0"]
    assert [line.split()[-1] for line in lines if line.startswith("lsdflow_stage_running{")] == ["0.0"]


def test_a_write_that_is_slower_than_its_interval_is_followed_by_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0.02)
    text, writing = StageMetrics.text, threading.Event()

    def slow_text(self: StageMetrics) -> bytes:
        writing.set()
        time.sleep(0.3)
        return text(self)

    monkeypatch.setattr(StageMetrics, "text", slow_text)
    with monitored("watched", experiment):
        assert writing.wait(60)
    (name,) = _files(experiment)
    lines = (experiment.layout.metrics / name).read_text().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("lsdflow_stage_exit_code{")] == ["0.0"]


def test_a_run_removes_what_dead_processes_of_its_stage_left_and_nothing_else(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0.02)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, folder = socket.gethostname(), experiment.layout.metrics
    folder.mkdir()
    gone = [f"watched-{here}-{ended.pid}.prom", "watched-other-host-8.prom"]
    gone += [f".watched-{here}-{ended.pid}.prom.partial"]
    kept = [f"other-{here}-{ended.pid}.prom", f"watched-{here}-{os.getppid()}.prom", "watched-other-host-7.prom"]
    for name in (*gone, *kept):
        (folder / name).touch()
    old = time.time() - FORGOTTEN_SECONDS - 60
    os.utime(folder / gone[1], (old, old))
    with monitored("watched", experiment):
        own = f"watched-{here}-{os.getpid()}.prom"
        eventually("its own file", lambda: own in _files(experiment))
    assert _files(experiment) == sorted([*kept, own])


def test_a_run_that_is_handed_over_is_reported_by_the_other_process_alone(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a", every_s=0.02)
    experiment = load_experiment(tmp_path / "a", ["compute.metrics_address=0"])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with monitored("train-lsd", experiment, run_pid=other.pid) as monitor:
            eventually("a file", lambda: _files(experiment))
            text = urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=60).read().decode()
            now = int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{other.pid}/status").read_text())[0]) * 1024
            of_process = re.findall(r'lsdflow_resident_bytes\{.*of="process".*\} (\S+)', text)
            assert float(of_process[0]) == pytest.approx(now, rel=0.1)
            hand_over()
            eventually("the file goes", lambda: not _files(experiment))
            with pytest.raises(URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=60)
        assert _files(experiment) == []
        other.communicate(b"\n")


def test_a_port_alone_is_loopback_and_an_interface_must_be_named() -> None:
    assert address_of("9464", {}) == Address("127.0.0.1", 9464)
    assert address_of("ib0.node7:9464", {}) == Address("ib0.node7", 9464)
    assert address_of(None, {}) is None
    assert address_of(None, {"LSDFLOW_METRICS_ADDRESS": "0"}) == Address("127.0.0.1", 0)
    assert address_of("1", {"LSDFLOW_METRICS_ADDRESS": "2"}) == Address("127.0.0.1", 1)
    for wrong in (f"{ipaddress.IPv4Address(0)}:9464", "9464x", "99999", "host:"):
        with pytest.raises(ConfigError, match="LSDFLOW_METRICS_ADDRESS"):
            address_of(None, {"LSDFLOW_METRICS_ADDRESS": wrong})


@pytest.mark.parametrize("everywhere", [str(ipaddress.IPv4Address(0)), "0", "0x0", "00.0"])
def test_all_interfaces_are_refused_however_they_are_written(everywhere: str) -> None:
    with pytest.raises(ConfigError, match="all interfaces"):
        address_of(f"{everywhere}:9100", {})
