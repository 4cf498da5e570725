"""A command that is asked in a fork answers as one started by itself, and finds loaded what all commands need."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lsdflow_contract.errors import MissingInput
from lsdflow_launch import commands
from lsdflow_launch.commands import answer_of, ask_program, ask_stage, of_this_python, run_stage

T = TypeVar("T")
REPORT = """import os, sys
print(sys.argv, os.getcwd(), os.environ.get("ASKED"), os.environ.get("LSDFLOW_BIN"), __name__)
print("what went wrong", file=sys.stderr)
sys.exit({code})
"""
HEAVY = {"scipy", "h5py", "numba", "torch", "daisy", "pymongo", "pyarrow"}


def _command(folder: Path, text: str, python: str = sys.executable) -> Path:
    path = folder / "asked"
    path.write_text(f"#!{python}\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("code", ["0", "66", "None", "'a text'"])
def test_the_answer_is_that_of_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    command = _command(tmp_path, REPORT.format(code=code))
    answer_of([command])  # the shared process is there before the caller's folder and environment change
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASKED", "since a moment")
    monkeypatch.delenv("LSDFLOW_BIN", raising=False)
    assert of_this_python(command)
    answer = answer_of([command, "plan", "--json"])
    by_itself = subprocess.run([command, "plan", "--json"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (by_itself.returncode, by_itself.stdout)
    assert answer.stderr.startswith("what went wrong")
    assert "since a moment" in answer.stdout


@pytest.mark.parametrize("call", [run_stage, ask_stage])
def test_a_command_without_its_python_is_missing_input_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]
) -> None:
    _command(tmp_path, "", python=str(tmp_path / "moved" / "python"))
    monkeypatch.setenv("LSDFLOW_BIN", str(tmp_path))
    with pytest.raises(MissingInput, match="asked cannot be started") as caught:
        call("asked", ["plan"])
    assert caught.value.where == str(tmp_path / "asked")
    assert "make setup" in caught.value.fix


def test_a_fork_has_loaded_what_all_commands_need_and_nothing_heavy(tmp_path: Path) -> None:
    command = _command(tmp_path, "import sys; print(*{name.partition('.')[0] for name in sys.modules})")
    loaded = set(answer_of([command]).stdout.split())
    assert {"numpy", "pydantic", "typer", "zarr", "lsdflow_command"} <= loaded
    assert HEAVY & loaded == set()


def test_every_question_has_a_process_of_its_own(tmp_path: Path) -> None:
    command = _command(tmp_path, "import os, sys; print(os.getpid(), hasattr(sys, 'marked')); sys.marked = True")
    first, second = (answer_of([command]).stdout.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1] == "False"


def test_a_traceback_and_a_killed_command_are_no_success(tmp_path: Path) -> None:
    failed = answer_of([_command(tmp_path, "raise ValueError('broken')")])
    assert failed.returncode == 1
    assert "ValueError: broken" in failed.stderr
    assert answer_of([_command(tmp_path, "import os; os.kill(os.getpid(), 9)")]).returncode != 0


ASK = """
import typer
from pathlib import Path
from lsdflow_command.app import exit_codes
from lsdflow_command.interruption import tidied_at_signals
from lsdflow_launch.commands import answer_of

def command(asked: Path) -> None:
    with exit_codes(debug=False), tidied_at_signals((asked.parent / "made").rmdir):
        answer_of([asked])

typer.run(command)
"""


@pytest.mark.parametrize("python", [sys.executable, "/bin/sh"], ids=["fork", "program"])
def test_ctrl_c_also_ends_what_a_command_is_asking(tmp_path: Path, python: str) -> None:
    pid = tmp_path / "pid"
    text = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    asked = _command(tmp_path, text if python == sys.executable else f"echo $$ > {pid}; exec sleep 100", python)
    asking = subprocess.Popen([sys.executable, "-c", ASK, str(asked)], stderr=subprocess.PIPE, text=True)
    number = int(until(lambda: pid.exists() and pid.read_text().strip()))
    asking.send_signal(signal.SIGINT)
    assert "interrupted" in asking.communicate(timeout=30)[1]
    assert asking.returncode == 75
    assert until(
        lambda: not Path(f"/proc/{number}").exists() or "State:\tZ" in Path(f"/proc/{number}/status").read_text()
    )


def test_what_a_terminated_command_was_asking_writes_nothing_more(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = (
        f"import time\nfrom pathlib import Path\nwhile True: Path({str(made)!r}).mkdir(exist_ok=True); time.sleep(0.01)"
    )
    asked = _command(tmp_path, text)
    asking = subprocess.Popen([sys.executable, "-c", ASK, str(asked)])
    until(made.exists)
    asking.terminate()
    assert asking.wait(30) == -signal.SIGTERM
    time.sleep(0.5)
    assert not made.exists()


def until(found: Callable[[], T], seconds: float = 60) -> T:
    """What `found` returns once that is true; else an error."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return value


def test_the_doctor_does_not_wait_for_a_command_that_hangs(tmp_path: Path) -> None:
    command = _command(tmp_path, "import time; print('begun', flush=True); time.sleep(600)")
    assert ask_program([str(command)], 0.2) == ("", "no answer within 0 s")


def test_a_command_of_another_python_is_started_as_a_program(tmp_path: Path) -> None:
    shell = _command(tmp_path, 'echo "$0 $*"; exit 3', python="/bin/sh")
    assert not of_this_python(shell)
    answer = answer_of([shell, "plan"])
    assert (answer.returncode, answer.stdout) == (3, f"{shell} plan\n")
    script = _command(tmp_path, REPORT)
    script.chmod(0o644)
    assert not of_this_python(script)
    assert not of_this_python(_command(tmp_path, REPORT, python=f"{sys.executable} -I"))
    assert not of_this_python(tmp_path / "none")


def test_without_a_shared_process_the_command_is_started_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*_: object) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(commands, "_answer_in_fork", no_socket)
    assert answer_of([_command(tmp_path, "print('here')")]).stdout == "here\n"


def test_without_room_for_the_answer_the_command_is_started_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _command(tmp_path, REPORT.format(code=66))
    monkeypatch.setattr(
        commands.tempfile, "TemporaryDirectory", lambda **_: contextlib.nullcontext(str(tmp_path / "not there"))
    )
    answer = answer_of([command])
    assert answer.returncode == 66
    assert "__main__" in answer.stdout
