"""release.py: a commit is tagged only if everything that changed since the last release has a version that says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ("-c", "user.name=t", "-c", "user.email=t@example.org")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the packages' projects and changelogs, and the files that the images are made from."""
    root = tmp_path / "checkout"
    shutil.copytree(REPOSITORY / "containers", root / "containers", ignore=shutil.ignore_patterns("__pycache__"))
    for project in REPOSITORY.glob("stages/*/pyproject.toml"):
        (root / "stages" / project.parent.name).mkdir(parents=True)
        for path in (project, project.with_name("CHANGELOG.md"), *project.parent.glob("*.lock")):
            shutil.copy(path, root / "stages" / project.parent.name)
    declared = Path("stages", "_contract", "src", "lsdflow_contract", "stages.toml")
    (root / declared).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / declared, root / declared)
    shutil.copy(REPOSITORY / "CHANGELOG.md", root)
    (root / ".gitignore").write_text("__pycache__/\n")
    _git(root, "init", "-q")
    return _committed(root)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *NAMES, *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout


def _committed(root: Path) -> Path:
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "a change")
    return root


def _release(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    identity = ["GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org"]
    command = ["env", *identity, sys.executable, str(root / "containers" / "release.py"), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def _raise_version(root: Path, package: str, new: str) -> None:
    """Raise the version of a package, with a section of its changelog."""
    folder = root / "stages" / package
    project = (folder / "pyproject.toml").read_text()
    old = next(line for line in project.splitlines() if line.startswith("version = "))
    (folder / "pyproject.toml").write_text(project.replace(old, f'version = "{new}"', 1))
    _add_section(folder / "CHANGELOG.md", new)


def _add_section(changelog: Path, version: str) -> None:
    changelog.write_text(changelog.read_text().replace("\n## ", f"\n## {version}\n- **Change**.\n\n## ", 1))


def _tags(root: Path) -> list[str]:
    return _git(root, "tag").split()


def _version(root: Path, package: str) -> str:
    project = (root / "stages" / package / "pyproject.toml").read_text()
    return project.partition('\nversion = "')[2].partition('"')[0]


def test_the_first_release_of_this_checkout_tags_the_whole_and_every_stage(checkout: Path) -> None:
    wanted = [f"v{_version(checkout, '_launch')}", *(f"{s}-v{_version(checkout, s)}" for s in STAGES)]
    rehearsed = _release(checkout, "--dry-run")
    assert (rehearsed.returncode, rehearsed.stdout.split()) == (0, wanted), rehearsed.stderr
    assert _tags(checkout) == []
    assert _release(checkout).stdout.split() == wanted
    assert _tags(checkout) == sorted(wanted)


def test_what_is_not_committed_is_not_released(checkout: Path) -> None:
    (checkout / "stages" / "segment" / "README.md").write_text("more\n")
    done = _release(checkout)
    assert done.returncode == 73
    assert "stages/segment/README.md" in done.stderr
    assert _tags(checkout) == []


def test_a_changed_shared_package_asks_for_new_versions_of_it_and_of_the_stages_that_hold_it(checkout: Path) -> None:
    _release(checkout)
    (checkout / "stages" / "_network" / "code.py").write_text("x = 1\n")
    _raise_version(checkout, "_launch", "9.0.0")
    _add_section(checkout / "CHANGELOG.md", "9.0.0")
    done = _release(_committed(checkout))
    assert done.returncode == 73
    named = [line.split(":")[0].strip() for line in done.stderr.splitlines() if "changed since" in line]
    assert named == [f"stages/{p}" for p in ("_network", "predict", "train-acrlsd", "train-lsd")]
    for package in ("_network", "predict", "train-acrlsd", "train-lsd"):
        _raise_version(checkout, package, "9.1.0")
    done = _release(_committed(checkout))
    assert done.stdout.split() == ["v9.0.0", "train-lsd-v9.1.0", "train-acrlsd-v9.1.0", "predict-v9.1.0"], done.stderr


def test_a_new_version_needs_a_section_of_its_changelog(checkout: Path) -> None:
    _release(checkout)
    for package in ("_launch", "segment"):
        _raise_version(checkout, package, "9.0.0")
    _add_section(checkout / "CHANGELOG.md", "9.0.0 (not released yet)")
    changelog = checkout / "stages" / "segment" / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## 9.0.0", "## 8.0.0"))
    done = _release(_committed(checkout))
    assert done.returncode == 73
    assert "CHANGELOG.md: its first section is of 9.0.0 (not released yet), wanted: ## 9.0.0" in done.stderr
    assert "stages/segment/CHANGELOG.md: its first section is of 8.0.0, wanted: ## 9.0.0" in done.stderr


def test_a_second_release_of_one_version_is_refused(checkout: Path) -> None:
    _release(checkout)
    done = _release(checkout)
    assert done.returncode == 73
    assert "raise this version, which is that of the whole" in done.stderr
