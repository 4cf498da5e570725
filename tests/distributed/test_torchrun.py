"""torchrun itself: it starts the processes, they find one another, and their 75 becomes its 1."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from worlds import STAGE

PROGRAMS = Path(sys.executable).parent
MOST_S = 1500.0


def start(toml: Path, log: Path) -> subprocess.Popen[bytes]:
    """Two processes of the stage's command; what they say goes to `log`."""
    torchrun = [PROGRAMS / "torchrun", "--standalone", "--nproc-per-node", "2", "--no-python"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*torchrun, PROGRAMS / STAGE, "run", "--experiment", toml],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def stop_one_process(torchrun: subprocess.Popen[bytes], first_checkpoint: Path) -> None:
    """SIGTERM to one of its processes once that checkpoint is there."""
    deadline = time.monotonic() + MOST_S
    while not first_checkpoint.exists() and torchrun.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    processes = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    assert len(processes) == 2
    os.kill(int(processes[1]), signal.SIGTERM)


def test_processes_of_torchrun_that_are_stopped_leave_a_checkpoint_and_torchrun_ends_with_1(
    training, tmp_path: Path
) -> None:
    stopped, log = training("stopped", max_iteration=100_000, checkpoint_every=1), tmp_path / "log"
    torchrun = start(stopped.toml, log)
    try:
        stop_one_process(torchrun, stopped.folder / "checkpoints" / "00000001" / "bundle.json")
        assert torchrun.wait(MOST_S) == 1, log.read_text()
    finally:
        torchrun.terminate()  # it ends its processes, which would outlive its kill
        torchrun.wait(60)
    output = log.read_text()
    assert "2 patches a step (2 processes" in output
    assert re.search(r"exitcode +: 75 ", output), output
    last = re.search(r"stopped by SIGTERM.* at iteration (\d+)", output)
    assert last is not None, output
    assert max(stopped.iterations()) == int(last[1])
