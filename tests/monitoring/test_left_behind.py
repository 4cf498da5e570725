"""Tests of monitoring that are aborted in the middle leave nothing at work: no stage, no worker, no server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from .conftest import HERE, REPOSITORY, eventually

MARK = "LSDFLOW_TEST_ABORTED"


@pytest.mark.slow
@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_tests_that_are_aborted(programs: Path, tmp_path: Path, how: signal.Signals) -> None:
    """All that the aborted pytest started has its variable, whoever started it."""
    mark = uuid.uuid4().hex
    folder = tmp_path / "of-the-aborted"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}", HERE / "held.py"]
    aborted = subprocess.Popen(
        words, cwd=REPOSITORY, env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        eventually("all is at work", lambda: list(folder.rglob("held")))
        assert len(_marked(mark)) >= 5, "pytest, stage, worker, Prometheus, node_exporter"
        aborted.send_signal(how)
        aborted.wait(60)
        eventually(f"all have ended, left are {_marked(mark)}", lambda: not _marked(mark), seconds=10)
    finally:
        for pid in _marked(mark):
            os.kill(pid, signal.SIGKILL)
        aborted.wait(60)


def _marked(mark: str) -> dict[int, str]:
    """Command lines of processes that have the variable."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended, or is another user's
    return found
