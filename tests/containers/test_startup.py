"""lsdflow_startup: caches of libraries go to a folder of this user alone, wherever there is room, never another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTUP = Path(__file__).resolve().parents[2] / "containers" / "startup"
REPORT = (
    "import json, os, tempfile, lsdflow_startup;"
    "print(json.dumps({'tmp': tempfile.gettempdir(), 'env': dict(os.environ)}))"
)


def _start(**environment: str) -> dict:
    wanted = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), **environment}
    done = subprocess.run(
        [sys.executable, "-B", "-c", REPORT], env=wanted, check=True, capture_output=True, text=True, cwd="/"
    )
    return json.loads(done.stdout)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A temporary folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def test_the_pth_file_runs_it_in_every_python_of_the_image() -> None:
    assert (STARTUP / "lsdflow_startup.pth").read_text().strip() == "import lsdflow_startup"


def test_caches_go_to_a_folder_that_only_this_user_may_enter(room: Path) -> None:
    found = _start(TMPDIR=str(room))
    caches = room / f"lsdflow-{os.getuid()}"
    assert caches.stat().st_mode & 0o777 == 0o700
    assert found["env"]["NUMBA_CACHE_DIR"] == str(caches / "numba")
    assert found["env"]["XDG_CACHE_HOME"] == str(caches / "cache")
    assert found["tmp"] == str(room)


def test_variables_that_are_set_stay(room: Path) -> None:
    assert _start(TMPDIR=str(room), NUMBA_CACHE_DIR="/mine")["env"]["NUMBA_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("kind", ["open to all", "a link", "a file"])
def test_a_folder_that_another_could_have_laid_there_is_not_used(room: Path, tmp_path: Path, kind: str) -> None:
    place = room / f"lsdflow-{os.getuid()}"
    if kind == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.write_text("")
    assert "NUMBA_CACHE_DIR" not in _start(TMPDIR=str(room))["env"]


def test_a_temporary_folder_that_cannot_be_written_is_replaced() -> None:
    found = _start(TMPDIR="/nonexistent")
    assert found["tmp"] != "/nonexistent"
    assert found["env"]["TMPDIR"] == found["tmp"]
    assert Path(found["env"]["NUMBA_CACHE_DIR"]).parent.is_dir()
