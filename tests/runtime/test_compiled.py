"""Compiled loops are kept where NUMBA_CACHE_DIR says, or in a folder of this user alone; without one they work too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_command.code_cache import has_code_cache, use_own_code_cache

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


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset, and unset again after the test, whatever it sets."""
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("named", [{"HOME": "home"}, {"HOME": "elsewhere", "XDG_CACHE_HOME": "home/.cache"}])
def test_a_command_keeps_code_in_a_private_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    _forget(monkeypatch)
    for variable, folder in named.items():
        monkeypatch.setenv(variable, str(tmp_path / folder))
    use_own_code_cache()
    own = tmp_path / "home" / ".cache" / "lsdflow"
    assert os.environ["NUMBA_CACHE_DIR"] == str(own / "numba")
    assert has_code_cache()
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("harm", ["others may write", "a link", "no home", "a file"])
def test_code_is_not_loaded_from_a_folder_that_others_could_have_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    _forget(monkeypatch)
    monkeypatch.setenv("HOME", "" if harm == "no home" else str(tmp_path))
    own = tmp_path / ".cache" / "lsdflow"
    own.parent.mkdir()
    if harm == "others may write":
        own.mkdir()
        own.chmod(0o777)
    elif harm == "a link":
        (tmp_path / "foreign").mkdir(mode=0o700)
        own.symlink_to(tmp_path / "foreign")
    elif harm == "a file":
        own.touch()
    use_own_code_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_folder_that_the_user_names_is_kept_also_if_it_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    use_own_code_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == ""
