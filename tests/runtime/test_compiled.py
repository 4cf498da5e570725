"""Compiled loops are kept where NUMBA_CACHE_DIR says, and nowhere else; without such a folder they still work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_command.code_cache import has_code_cache

PROGRAM = """
from lsdflow_runtime.compiled import compiled

@compiled
def added(count):
    total = 0
    for number in range(count):
        total += number
    return total

print(added(5))
"""


def _run(program: Path, cache: str | None) -> None:
    """A fresh process compiles, or takes what is kept, and gets it right."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {} if cache is None else {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr


def _files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "program.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    return path


def test_the_second_process_takes_what_the_first_compiled(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "not yet there" / "cache"
    _run(program, str(cache))
    first = _files(cache)
    assert {Path(name).suffix for name in first} == {".nbi", ".nbc"}
    _run(program, str(cache))
    assert _files(cache) == first
    assert list(_files(program.parent)) == ["program.py"]


@pytest.mark.parametrize("cache", [None, "", "code/program.py/cache", "/proc/cache"])
def test_without_a_folder_to_keep_it_in_it_works_and_leaves_nothing(
    program: Path, tmp_path: Path, cache: str | None
) -> None:
    _run(program, str(tmp_path / cache) if cache else cache)
    assert list(_files(tmp_path)) == ["code/program.py"]


def test_a_code_cache_is_a_named_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert not has_code_cache()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert has_code_cache()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert not has_code_cache()
