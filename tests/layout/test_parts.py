"""Every test belongs to exactly one part of `make test-all`, and every package has tests (tests/parts.mk)."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = REPOSITORY / "tests" / "parts.mk"
# Needs real volumes beside the checkout, and is a target of its own: `make test-real`.
ALONE = "tests/pipeline/test_real_volumes.py"


def _lists() -> dict[str, list[str]]:
    """The variables of tests/parts.mk."""
    text = LISTS.read_text().replace("\\\n", " ")
    return {name: value.split() for name, value in re.findall(r"^([A-Za-z][\w-]*) :=(.*)$", text, re.MULTILINE)}


def _pytest_lines(*words: str) -> list[str]:
    """How make would call pytest. A make that called these tests must not change the answer."""
    own = ("MAKE", "MFLAGS", "SHORT_FIRST", "PACKAGE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    command = ["make", "-n", *words]
    output = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if "/pytest " in line]


def _is_in(path: str, places: list[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _chosen_by(line: str, files: list[str]) -> list[str]:
    """The test files that a call of pytest runs."""
    words = line.split()
    places = [word for word in words if word.startswith("tests/")]
    ignored = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    return [path for path in files if _is_in(path, places) and not _is_in(path, ignored)]


def _test_files() -> list[str]:
    return sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("order", ["", "SHORT_FIRST=1"])
def test_every_file_of_tests_is_run_once(order: str) -> None:
    files = _test_files()
    again = " ".join(_lists()["AVX2_BLOCKS"]), " ".join(_lists()["AVX2_TRAINING"])
    lines = [line for line in _pytest_lines("test-all", *order.split()) if not line.endswith(again)]
    runs = Counter(path for line in lines for path in _chosen_by(line, files))
    assert {path: runs[path] for path in files if runs[path] != (path != ALONE)} == {}


def test_the_longest_files_come_first_or_last() -> None:
    for order, first in (("", True), ("SHORT_FIRST=1", False)):
        (line,) = _pytest_lines("test-blocks", *order.split())
        words = line.split()
        assert (words.index("tests/runtime") < words.index("tests/sweep")) == first


def test_every_list_names_what_is_there() -> None:
    named = [path for paths in _lists().values() for path in paths]
    assert len(named) > 50
    assert [path for path in named if not (REPOSITORY / path.partition("::")[0]).exists()] == []
    core = _lists()["CORE_BLOCKS"] + _lists()["CORE_TRAINING"]
    assert [path for path in core if _is_in(path, [other for other in core if other != path])] == []


@pytest.mark.proves("NEW-16")
def test_every_package_has_tests_of_its_own() -> None:
    packages = {path.name.removeprefix("_") for path in (REPOSITORY / "stages").iterdir() if path.is_dir()}
    assert {name.removeprefix("TESTS_OF_") for name in _lists() if name.startswith("TESTS_OF_")} == packages


def test_the_tests_of_a_package_run_where_it_is_installed() -> None:
    for name in _lists():
        if name.startswith("TESTS_OF_"):
            package = name.removeprefix("TESTS_OF_")
            (line,) = _pytest_lines("test", f"PACKAGE={package}")
            (environment,) = re.findall(r"\.venv/(\w+)/bin/pytest", line)
            variable = f"$({environment.upper()}_PACKAGES)"
            show = ["make", "-s", "--eval", f"show:; @echo {variable}", "show"]
            installed = subprocess.run(show, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
            assert package in [folder.removeprefix("_") for folder in installed], (package, environment)


def test_a_package_that_is_not_there_gives_one_message_with_the_list() -> None:
    command = ["make", "-n", "test", "PACKAGE=waterhsed"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert 'there is no package "waterhsed"; the packages are agglomerate command' in line
