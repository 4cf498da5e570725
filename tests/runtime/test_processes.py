"""Other processes: who has certainly ended, and that only one gets past a lock file."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_command import processes
from lsdflow_command.processes import has_ended, one_at_a_time
from lsdflow_contract.errors import NotOurs


def test_only_a_process_of_this_machine_that_is_gone_has_certainly_ended() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    assert has_ended(here, gone.pid)
    assert not has_ended(here, os.getpid())
    assert not has_ended("elsewhere", gone.pid)


def test_the_second_is_refused_and_named_and_the_next_gets_in(tmp_path: Path) -> None:
    lock = tmp_path / "not yet there" / "lock"
    with (
        one_at_a_time(lock, "prepare"),
        pytest.raises(NotOurs, match="another prepare"),
        one_at_a_time(lock, "prepare"),
    ):
        pytest.fail("two at once")
    with one_at_a_time(lock, "prepare"):
        pass


def test_a_file_system_without_locks_is_told_and_does_not_stop_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_file: object, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(processes.fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING), one_at_a_time(tmp_path / "lock", "prepare"):
        pass
    assert "no locks" in caplog.text
