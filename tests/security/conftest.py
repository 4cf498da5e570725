"""The repository as git has it, and the modules beside this file."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


def beside(name: str) -> ModuleType:
    """A module of this folder."""
    if str(HERE) not in sys.path:
        sys.path.append(str(HERE))
    return importlib.import_module(name)


@pytest.fixture(scope="session")
def code_lint() -> ModuleType:
    """The lint of this folder."""
    return beside("code_lint")


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file of the repository, new ones too; what git ignores is none."""
    listed = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


@pytest.fixture(scope="session")
def watched_run() -> ModuleType:
    """The watcher of runs of this folder."""
    return beside("watched_run")
