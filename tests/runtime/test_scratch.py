"""A folder for a while is gone when its command ends, by a signal too; one that SIGKILL left goes with the next."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsdflow_command.scratch import scratch_folder

HOLD = """
import time
from pathlib import Path
import typer
from lsdflow_command.app import exit_codes
from lsdflow_command.scratch import scratch_folder

def command(parent: Path) -> None:
    with exit_codes(debug=False), scratch_folder(parent, "measure") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "block").write_bytes(bytes(100))
        print("begun", flush=True)
        time.sleep(100)

typer.run(command)
"""
NEW_EXPERIMENT = """
import time
from pathlib import Path
import typer
from lsdflow_command.app import exit_codes
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.draft import removed_on_failure

def command(parent: Path) -> None:
    layout = ExperimentLayout(parent / "new")
    with exit_codes(debug=False), removed_on_failure(layout):
        layout.root.mkdir()
        layout.experiment_toml.write_text("")
        print("begun", flush=True)
        time.sleep(100)

typer.run(command)
"""


def begun(text: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has begun its folder."""
    process = subprocess.Popen([sys.executable, "-c", text, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has a folder in tmp_path."""
    process = begun(HOLD, tmp_path)
    yield process
    process.kill()
    process.wait()


def test_a_folder_is_there_for_the_block_only(tmp_path: Path) -> None:
    with scratch_folder(tmp_path, "measure") as folder:
        assert list(tmp_path.iterdir()) == [folder]
        (folder / "block").write_bytes(b"x")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_folder_of_this_name(tmp_path: Path, holder) -> None:
    (left,) = tmp_path.iterdir()
    holder.kill()
    holder.wait()
    with scratch_folder(tmp_path, "pull"):
        assert left.exists()
    with scratch_folder(tmp_path, "measure"):
        assert not left.exists()


def test_the_folder_of_a_running_process_or_of_another_machine_stays(tmp_path: Path, holder) -> None:
    (used,) = tmp_path.iterdir()
    elsewhere = tmp_path / f".measure-{socket.gethostname()}-2~x"
    elsewhere.mkdir()
    (elsewhere / "in-use").touch()
    with scratch_folder(tmp_path, "measure") as folder, scratch_folder(tmp_path, "measure") as second:
        assert {used, elsewhere, folder, second} == set(tmp_path.iterdir())
    assert (used / "deep" / "block").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGINT, 75)])
@pytest.mark.parametrize("text", [HOLD, NEW_EXPERIMENT], ids=["scratch", "new experiment"])
def test_a_command_that_a_signal_ends_leaves_nothing(tmp_path: Path, text: str, number: int, code: int) -> None:
    process = begun(text, tmp_path)
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    assert process.wait(30) == code
    assert not list(tmp_path.iterdir())
