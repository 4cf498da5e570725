"""Every shell script of the repository: shellcheck has nothing to say, and what is called directly may be executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import REPOSITORY

SHELLCHECK = Path(sys.executable).parent / "shellcheck"


def _scripts() -> list[str]:
    """Tracked files that a shell reads: by their name or by their first line."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in filter(None, names) if _is_shell(REPOSITORY / name)]


def _is_shell(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in (".sh", ".sbatch"):
        return True
    with path.open("rb") as file:
        first = file.readline(100)
    return first.startswith(b"#!") and first.rstrip().endswith((b"bash", b"/sh", b" sh"))


def test_the_scripts_of_all_folders_are_found() -> None:
    found = {name.split("/")[0] for name in _scripts()}
    assert {".ci", "containers", "slurm_wrappers", "tests"} <= found


@pytest.mark.parametrize("name", _scripts())
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    options = ["--external-sources", "--source-path=SCRIPTDIR:.", "--format=gcc"]
    done = subprocess.run([SHELLCHECK, *options, name], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", _scripts())
def test_what_has_a_first_line_may_be_executed_and_what_is_sourced_may_not(name: str) -> None:
    path = REPOSITORY / name
    assert os.access(path, os.X_OK) == path.read_text().startswith("#!")
