"""published.tsv: lines are only added, one per stage and version, and nothing is built or pushed against them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = "stage\tversion\tdigest\tcontract\trevision\tdate\n"
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
# An engine that answers what ledger.py asks: labels of the local image, and the registry's digest once it is pushed.
ENGINE = r"""#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  *Labels*) printf '%s\n' "org.opencontainers.image.version=0.1.0" "org.opencontainers.image.revision=$REVISION" \
    "lsdflow.contract=1.0.0" ;;
  *RepoDigests*) if [[ -e $CALLS.pushed ]]; then echo "registry.example/lab/watershed@$PUSHED"; fi ;;
  pull*) [[ -n ${IN_REGISTRY:-} ]] ;;
  *"{{.Id}} registry"*) echo "sha256:$IN_REGISTRY" ;;
  *"{{.Id}}"*) echo sha256:own ;;
  push*) touch "$CALLS.pushed" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with the ledger, its program, and the parts of one stage."""
    root = tmp_path / "checkout"
    (root / "containers").mkdir(parents=True)
    for name in ("facts.py", "images.py", "ledger.py", "oci_layout.py", "Dockerfile", "install.sh", "installer.lock"):
        shutil.copy(REPOSITORY / "containers" / name, root / "containers")
    (root / "containers" / "published.tsv").write_text(HEADER)
    for folder in ("_contract", "_command", "_runtime", "watershed"):
        (root / "stages" / folder / "src").mkdir(parents=True)
        (root / "stages" / folder / "src" / "code.py").write_text("x = 1\n")
        shutil.copy(REPOSITORY / "stages" / folder / "pyproject.toml", root / "stages" / folder)
    declared = Path("stages", "_contract", "src", "lsdflow_contract", "stages.toml")
    (root / declared).parent.mkdir()
    shutil.copy(REPOSITORY / declared, root / declared)
    shutil.copy(REPOSITORY / "stages" / "watershed" / "requirements.lock", root / "stages" / "watershed")
    project = root / "stages" / "watershed" / "pyproject.toml"
    project.write_text(project.read_text().replace(_version(project), "0.1.0"))
    _git(root, "init", "-q")
    _commit(root)
    return root


def _version(project: Path) -> str:
    return next(x for x in project.read_text().splitlines() if x.startswith("version = ")).split('"')[1]


def _git(root: Path, *arguments: str) -> str:
    names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *names, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _commit(root: Path) -> str:
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "-m", "x")
    return _git(root, "rev-parse", "HEAD")


def _ledger(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(root / "containers" / "ledger.py"), *arguments]
    return subprocess.run(program, env={**os.environ, **environment}, check=False, capture_output=True, text=True)


def _publish(root: Path, revision: str, pushed: str = NEW, **more: str) -> subprocess.CompletedProcess[str]:
    engine, calls = root.parent / "engine", root.parent / "calls"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    environment = {"CONTAINER_TOOL": str(engine), "CALLS": str(calls), "PUSHED": pushed, "REVISION": revision, **more}
    return _ledger(root, "publish", "watershed", "registry.example/lab", **environment)


def _line(revision: str, digest: str = OLD, version: str = "0.1.0") -> str:
    return f"watershed\t{version}\t{digest}\t1.0.0\t{revision}\t2026-11-01\n"


def _append(root: Path, text: str) -> None:
    with (root / "containers" / "published.tsv").open("a") as file:
        file.write(text)


def test_the_ledger_of_this_repository_is_well_formed_and_only_grew() -> None:
    done = _ledger(REPOSITORY, "check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variant", ["", "-cpu", "-cuda", "-cuda12", "-tensorflow", "-cuda-tensorflow"])
def test_every_variant_may_be_listed(checkout: Path, variant: str) -> None:
    _append(checkout, _line("d" * 40, version=f"0.1.0{variant}"))
    done = _ledger(checkout, "check")
    assert done.returncode == 0, done.stderr


def test_a_version_that_is_not_published_may_be_built(checkout: Path) -> None:
    assert _ledger(checkout, "may-build", "watershed").returncode == 0


def test_a_published_version_may_be_built_again_from_the_same_content(checkout: Path) -> None:
    _append(checkout, _line(_git(checkout, "rev-parse", "HEAD")))
    (checkout / "unrelated.txt").write_text("x")
    _commit(checkout)
    assert _ledger(checkout, "may-build", "watershed").returncode == 0


def test_make_image_asks_the_ledger_before_it_builds(checkout: Path) -> None:
    engine, calls = checkout.parent / "engine", checkout.parent / "calls"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    _append(checkout, _line(_git(checkout, "rev-parse", "HEAD")))
    (checkout / "stages/watershed/src/code.py").write_text("x = 2\n")
    program = [sys.executable, str(checkout / "containers" / "images.py"), "build", "watershed"]
    environment = {**os.environ, "CONTAINER_TOOL": str(engine), "CALLS": str(calls)}
    done = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 73
    assert "stages/watershed/src/code.py" in done.stderr
    assert not any(call.startswith("build") for call in calls.read_text().splitlines())


@pytest.mark.parametrize("where", ["stages/_runtime/src/code.py", "containers/Dockerfile", "new"])
def test_a_published_version_is_not_built_from_other_content(checkout: Path, where: str) -> None:
    _append(checkout, _line(_git(checkout, "rev-parse", "HEAD")))
    path = checkout / ("stages/watershed/src/new.py" if where == "new" else where)
    path.write_text((path.read_text() if path.exists() else "") + "# changed\n")
    done = _ledger(checkout, "may-build", "watershed")
    assert done.returncode == 73
    assert str(path.relative_to(checkout)) in done.stderr
    assert "raise the version in stages/watershed/pyproject.toml" in done.stderr


def test_a_published_version_of_an_unknown_revision_is_not_built(checkout: Path) -> None:
    _append(checkout, _line("c" * 40))
    assert _ledger(checkout, "may-build", "watershed").returncode == 73


def test_publishing_adds_one_line_with_the_digest_of_the_registry(checkout: Path) -> None:
    revision = _git(checkout, "rev-parse", "HEAD")
    done = _publish(checkout, revision)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"registry.example/lab/watershed:0.1.0@{NEW}"
    lines = (checkout / "containers" / "published.tsv").read_text().splitlines()
    assert lines[0] + "\n" == HEADER
    assert [line.split("\t")[:5] for line in lines[1:]] == [["watershed", "0.1.0", NEW, "1.0.0", revision]]
    assert _ledger(checkout, "check").returncode == 0


def test_publishing_the_same_image_again_changes_nothing(checkout: Path) -> None:
    revision = _git(checkout, "rev-parse", "HEAD")
    _publish(checkout, revision)
    before = (checkout / "containers" / "published.tsv").read_text()
    assert _publish(checkout, revision).returncode == 0
    assert (checkout / "containers" / "published.tsv").read_text() == before


def test_a_published_version_with_another_digest_is_refused_before_anything_is_pushed(checkout: Path) -> None:
    _append(checkout, _line("d" * 40))
    done = _publish(checkout, _git(checkout, "rev-parse", "HEAD"))
    assert done.returncode == 73
    assert OLD in done.stderr
    assert "push" not in (checkout.parent / "calls").read_text()


def test_a_tag_that_another_took_in_the_registry_is_not_pushed_over(checkout: Path) -> None:
    done = _publish(checkout, _git(checkout, "rev-parse", "HEAD"), IN_REGISTRY="another")
    assert done.returncode == 73
    assert "registry.example/lab/watershed:0.1.0 is in the registry" in done.stderr
    assert "push" not in (checkout.parent / "calls").read_text()
    assert (checkout / "containers" / "published.tsv").read_text() == HEADER


def test_what_was_pushed_and_not_written_down_is_written_down(checkout: Path) -> None:
    done = _publish(checkout, _git(checkout, "rev-parse", "HEAD"), IN_REGISTRY="own")
    assert done.returncode == 0, done.stderr
    assert len((checkout / "containers" / "published.tsv").read_text().splitlines()) == 2


def test_an_image_of_uncommitted_changes_is_not_published(checkout: Path) -> None:
    done = _publish(checkout, _git(checkout, "rev-parse", "HEAD") + "-dirty")
    assert done.returncode == 73
    assert "clean commit" in done.stderr
    assert (checkout / "containers" / "published.tsv").read_text() == HEADER


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stage\tversion\n", "column names"),
        (HEADER + "watershed\t0.1.0\n", ":2: 2 columns"),
        (HEADER + _line("d" * 40, digest="sha256:12"), ":2: malformed digest"),
        (HEADER + _line("d" * 40) + _line("e" * 40, digest=NEW), ":3: watershed 0.1.0 is listed twice"),
        (HEADER + _line("d" * 40).replace("watershed", "nosuch"), ":2: malformed stage"),
    ],
)
def test_a_malformed_ledger_is_named_with_its_line(checkout: Path, text: str, fault: str) -> None:
    (checkout / "containers" / "published.tsv").write_text(text)
    done = _ledger(checkout, "check")
    assert done.returncode == 65
    assert fault in done.stderr


def test_a_changed_line_of_the_last_commit_is_found(checkout: Path) -> None:
    _append(checkout, _line("d" * 40))
    _commit(checkout)
    (checkout / "containers" / "published.tsv").write_text(HEADER + _line("d" * 40, digest=NEW))
    done = _ledger(checkout, "check")
    assert done.returncode == 65
    assert "only added" in done.stderr
