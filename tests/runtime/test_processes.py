"""Other processes: who has certainly ended, that only one gets past a lock file, and that none outlives its parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lsdflow_command import processes
from lsdflow_command.processes import end_with_parent, has_ended, one_at_a_time, pid_namespace
from lsdflow_contract.errors import OutputConflict


def test_only_a_process_of_this_machine_that_is_gone_has_certainly_ended() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    assert has_ended(here, gone.pid)
    assert not has_ended(here, os.getpid())
    assert not has_ended("elsewhere", gone.pid)
    assert has_ended(here, gone.pid, pid_namespace())
    assert not has_ended(here, gone.pid, "another boot pid:[1]")
    assert not has_ended(here, gone.pid, ""), "a machine that names no namespace is never certain"


def test_the_second_is_refused_and_named_and_the_next_gets_in(tmp_path: Path) -> None:
    lock = tmp_path / "not yet there" / "lock"
    with (
        one_at_a_time(lock, "prepare"),
        pytest.raises(OutputConflict, match="another prepare"),
        one_at_a_time(lock, "prepare"),
    ):
        pytest.fail("two at once")
    with one_at_a_time(lock, "prepare"):
        pass


def test_a_file_system_without_locks_is_reported_and_does_not_stop_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_file: object, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(processes.fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING), one_at_a_time(tmp_path / "lock", "prepare"):
        pass
    assert "no locks" in caplog.text


def _child(folder: Path, late: bool) -> None:
    parent = os.getppid()
    if not late:
        end_with_parent()
    (folder / "pid").write_text(str(os.getpid()))
    while os.getppid() == parent:
        time.sleep(0.05)
    if late:
        end_with_parent()
    (folder / "outlived its parent").touch()


def _runs(pid: int) -> bool:
    """False also for one that ended and that nobody waited for."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _parent(folder: Path, late: bool) -> None:
    child = multiprocessing.get_context("fork").Process(target=_child, args=(folder, late))
    child.start()
    child.join()


@pytest.mark.parametrize("late", [False, True])
def test_no_process_outlives_the_one_that_started_it_even_if_that_ended_first(tmp_path: Path, late: bool) -> None:
    parent = multiprocessing.get_context("fork").Process(target=_parent, args=(tmp_path, late))
    parent.start()
    pid_file, ends = tmp_path / "pid", time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < ends:
        time.sleep(0.05)
    child = int(pid_file.read_text())
    os.kill(parent.pid or 0, signal.SIGKILL)
    parent.join()
    while _runs(child) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _runs(child)
    assert [file.name for file in tmp_path.iterdir()] == ["pid"]
