"""The revision of a clone, for manifests and arrays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lsdflow_contract.manifest import Writer
from lsdflow_contract.software import REVISION_VARIABLE, revision_of_clone, source_revision


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "code.py").write_text("1\n")
    git(folder, "add", "code.py")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_clone_reports_its_commit(clone: Path) -> None:
    git(clone, "tag", "v1")
    assert revision_of_clone(clone) == git(clone, "rev-parse", "HEAD")


def test_a_clone_with_changed_code_is_marked_as_changed(clone: Path) -> None:
    (clone / "code.py").write_text("2\n")
    assert revision_of_clone(clone) == git(clone, "rev-parse", "HEAD") + "-dirty"


def test_a_folder_that_is_no_clone_has_no_revision_also_inside_one(clone: Path) -> None:
    (clone / "inside").mkdir()
    assert revision_of_clone(clone / "inside") == ""


def test_without_git_there_is_no_revision(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(clone))
    assert revision_of_clone(clone) == ""


def test_the_revision_of_an_image_comes_first_and_a_manifest_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REVISION_VARIABLE, "of the image")
    assert source_revision() == "of the image" == Writer.of("watershed").revision
    monkeypatch.delenv(REVISION_VARIABLE)
    assert Writer.of("watershed").revision == revision_of_clone(Path(__file__).resolve().parents[2])
