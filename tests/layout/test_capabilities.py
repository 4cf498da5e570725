"""Capabilities (docs/capabilities.md) and the tests that prove them."""

from __future__ import annotations

from pathlib import Path

import capabilities

FILE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.proves("DAT-01")]

@pytest.mark.parametrize("n", [1])
@pytest.mark.proves("DAT-02", "DAT-03")
def test_one(n): ...

def test_other(): ...
"""


def test_every_id_of_a_mark_is_in_the_list() -> None:
    assert sorted(set(capabilities.proofs()) - set(capabilities.listed())) == []


def test_every_capability_is_listed_once_and_most_have_a_test() -> None:
    ids = [line[2:8] for line in capabilities.PAGE.read_text(encoding="utf-8").splitlines() if line[:3] != "| I"]
    ids = [name for name in ids if name[3:4] == "-" and name[:3].isupper()]
    assert len(ids) == len(set(ids)) == len(capabilities.listed()) > 200
    assert len(capabilities.proofs()) > len(ids) / 2


def test_marks_of_tests_and_of_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FILE)
    wanted = {"DAT-01": ["test_a.py"], "DAT-02": ["test_a.py::test_one"], "DAT-03": ["test_a.py::test_one"]}
    assert capabilities.proofs(tmp_path) == wanted


def test_the_table_names_what_no_test_proves() -> None:
    rows = capabilities.table().splitlines()
    without = {row.split()[0] for row in rows[:-1]}
    assert without == set(capabilities.listed()) - set(capabilities.proofs())
