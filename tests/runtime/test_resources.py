"""What processes use, read from the kernel: compared with what another library and the test itself know."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lsdflow_command.resources import Memory, Usage, memory, usage, workers_of

MIB = 2**20
# Linux adds up the pages of a process per processor, and compares the peak with a sum that may lag behind.
INEXACT = 2 * MIB


def test_memory_is_what_psutil_says_and_the_peak_stays() -> None:
    taken = mmap.mmap(-1, 64 * MIB)
    taken.write(os.urandom(MIB) * 64)
    with_it = memory()
    assert with_it.resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    taken.close()
    after = memory()
    assert after.peak_resident >= with_it.resident - INEXACT
    assert with_it.resident - after.resident > 32 * MIB
    assert after.peak_virtual >= after.peak_resident


def test_bytes_and_processor_time_of_this_process_and_of_its_ended_children_count(tmp_path: Path) -> None:
    before = usage()
    (tmp_path / "file").write_bytes(bytes(3 * MIB))
    (tmp_path / "file").read_bytes()
    write = f"open({str(tmp_path / 'other')!r}, 'wb').write(bytes({2 * MIB}))"
    busy = f"import time\n{write}\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    used = usage() - before
    assert 5 * MIB <= used.written_bytes < 6 * MIB
    assert used.read_bytes >= 3 * MIB
    assert used.cpu_s >= 0.25


def test_children_of_children_are_found_and_processes_that_are_gone_use_nothing() -> None:
    shell = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"])
    try:
        for _ in range(100):
            below = workers_of()
            if len(psutil.Process(shell.pid).children()) == 1 and shell.pid in below:
                break
            time.sleep(0.05)
        below = workers_of()
        assert shell.pid in below
        assert set(below) == {child.pid for child in psutil.Process().children(recursive=True)}
    finally:
        for child in psutil.Process(shell.pid).children(recursive=True):
            child.kill()
        shell.kill()
        shell.wait()
    assert (usage(shell.pid), memory(shell.pid), workers_of(shell.pid)) == (Usage(), Memory(), [])
