"""CI runs every part of `make test`, and says what it had no time for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = REPOSITORY / ".ci" / "run"
# user nice system idle iowait irq softirq steal guest guest_nice, of proc(5)
BEFORE = "cpu  1000 0 200 5000 300 10 20 70 0 0\n"


def test_ci_runs_every_part_of_make_test() -> None:
    (prerequisites,) = re.findall(r"^test: setup (.*?) +##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    parts = re.findall(r"\bpart \d+ (test-[a-z]+)", RUN.read_text())
    assert list(dict.fromkeys(parts)) == prerequisites.split()


def _pytest_lines(*words: str) -> list[str]:
    """How make would call pytest; a make that called these tests has no say in it."""
    own = ("MAKE", "MFLAGS", "SHORT_FIRST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    command = ["make", "-n", *words]
    told = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if "/pytest " in line]


def test_every_folder_of_tests_is_of_one_part() -> None:
    words = [word for line in _pytest_lines("test") for word in line.split()]
    asked = [word for word in words if word.startswith("tests/")]
    folders = {folder.name for folder in (REPOSITORY / "tests").iterdir() if any(folder.glob("**/test_*.py"))}
    assert {word.split("/")[1] for word in asked} >= folders
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("order", ["", "SHORT_FIRST=1"])
def test_the_order_of_the_tests_changes_none_of_them(order: str) -> None:
    (line,) = _pytest_lines("test-blocks", *order.split())
    folders = [word for word in line.split() if word.startswith("tests/")]
    assert (folders.index("tests/runtime") > folders.index("tests/contract")) == bool(order)
    assert {"tests/pipeline", "tests/faults", "tests/runtime", "tests/contract", "tests/stages"} <= set(folders)


@pytest.mark.parametrize(
    ("after", "percent", "starved"),
    [
        ("cpu  1100 0 200 9000 300 10 20 70 0 0\n", "0", False),
        ("cpu  1070 0 215 9000 300 10 20 85 0 0\n", "14", False),
        ("cpu  1020 0 200 9000 900 10 20 150 0 0\n", "79", True),
    ],
)
def test_what_the_host_gave_to_others_is_a_share_of_what_was_wanted(
    tmp_path: Path, after: str, percent: str, starved: bool
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    program = f'source .ci/steal.sh; printf "%s" "{after}" >{stat}; stolen_percent; starved && echo starved || true'
    environment = {**os.environ, "LSDFLOW_CI_STAT": str(stat)}
    done = subprocess.run(
        ["bash", "-euc", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [percent, *(["starved"] if starved else [])]


@pytest.mark.parametrize("no_time", [False, True])
def test_tests_are_left_out_and_told_once_ci_says_that_there_is_no_time(tmp_path: Path, no_time: bool) -> None:
    (tmp_path / "test_one.py").write_text("def test_one() -> None:\n    assert True\n")
    file = tmp_path / "no-time"
    if no_time:
        file.touch()
    command = [sys.executable, "-m", "pytest", "-c", REPOSITORY / "pytest.ini", "-p", "no:cacheprovider", tmp_path]
    environment = {**os.environ, "LSDFLOW_CI_NO_TIME": str(file)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert ("1 skipped" if no_time else "1 passed") in told
    assert ("CI has no time left" in told) == no_time


def _together(folder: Path, tests: str) -> tuple[int, str]:
    """Exit code and output of these tests, in two processes, as `make test` runs them."""
    (folder / "test_one.py").write_text(tests)
    (folder / "test_two.py").write_text("def test_two() -> None:\n    assert True\n")
    (line,) = _pytest_lines("test-view")
    options = re.findall(r"-n 2|--[a-z-]+[= ][a-z0-9]+|-o faulthandler_exit\S+", line)
    command = [sys.executable, "-m", "pytest", "-c", REPOSITORY / "pytest.ini", "-p", "no:cacheprovider", folder]
    command += [word for option in options for word in option.split()] + ["-o", "faulthandler_timeout=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_failure_is_told_before_the_end(tmp_path: Path) -> None:
    code, told = _together(tmp_path, "def test_one() -> None:\n    assert 1 == 2, 'for a reason'\n")
    now, _, summary = told.partition("= FAILURES =")
    assert code == 1
    assert "FAILED now: " in now
    assert "for a reason" in now
    assert "for a reason" in summary


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import time; time.sleep(50)"])
def test_a_test_that_ends_its_process_or_hangs_is_named_and_does_not_hang_the_rest(tmp_path: Path, end: str) -> None:
    code, told = _together(tmp_path, f"def test_one() -> None:\n    {end}\n\ndef test_after() -> None:\n    pass\n")
    assert code == 1
    assert "test_one.py::test_one" in told
