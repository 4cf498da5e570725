"""The Dockerfile as text: lock before source, labels last, no address; and what facts.py chooses for each image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES, TRAININGS

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES = [(stage, "torch") for stage in STAGES] + [(stage, "tensorflow") for stage in TRAININGS]
DOCKERFILE = (REPOSITORY / "containers" / "Dockerfile").read_text()
LABELS = (
    *(f"org.opencontainers.image.{n}" for n in ("title", "version", "revision", "created", "source", "documentation")),
    *(f"org.opencontainers.image.{n}" for n in ("licenses", "vendor", "base.name", "base.digest")),
    *(f"lsdflow.{n}" for n in ("stage", "contract", "torch", "backend")),
)


def _instructions() -> list[str]:
    """Instructions with their continuation lines joined, without comments."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    return re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines()


def _project(folder: str) -> dict:
    return tomllib.loads((REPOSITORY / "stages" / folder / "pyproject.toml").read_text())


def test_there_is_one_dockerfile() -> None:
    assert list((REPOSITORY / "containers").rglob("*Dockerfile*")) == [REPOSITORY / "containers" / "Dockerfile"]


@pytest.mark.parametrize(("stage", "backend"), IMAGES)
def test_an_image_gets_its_lock_and_the_packages_that_the_stage_needs_and_no_other(
    stage: str, backend: str, tmp_path: Path
) -> None:
    program = [sys.executable, str(REPOSITORY / "containers" / "facts.py"), stage, str(tmp_path / "chosen")]
    subprocess.run(program, env={**os.environ, "TORCH": "cpu", "BACKEND": backend}, check=True)
    names = {_project(folder.name)["project"]["name"]: folder for folder in (REPOSITORY / "stages").glob("*")}
    needed, waiting = set(), [stage, *([f"_{backend}"] if backend == "tensorflow" else [])]
    while waiting:
        folder = waiting.pop()
        if folder not in needed:
            needed.add(folder)
            dependencies = (re.split(r"[ =<>]", d)[0] for d in _project(folder)["project"]["dependencies"])
            waiting += [names[name].name for name in dependencies if name in names]
    assert {path.name for path in (tmp_path / "chosen" / "source").iterdir()} == needed
    folder, name = "_tensorflow" if backend == "tensorflow" else stage, "cpu.lock"
    if not (REPOSITORY / "stages" / stage / "cuda.lock").exists():
        name = "requirements.lock"
    assert (tmp_path / "chosen" / "lsds.txt").exists() == ("_training" in needed)
    assert (tmp_path / "chosen" / "locked.txt").read_text() == (REPOSITORY / "stages" / folder / name).read_text()


def test_an_unknown_stage_is_refused_in_the_build() -> None:
    program = [sys.executable, str(REPOSITORY / "containers" / "facts.py"), "watersched", "nowhere"]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no such stage: watersched" in done.stderr


def test_only_the_first_step_sees_all_stages() -> None:
    """What follows copies from it, and so depends on the files of its own stage alone."""
    lines = _instructions()
    (copied,) = [i for i, line in enumerate(lines) if "stages" in line and line.startswith("COPY")]
    assert lines[copied] == "COPY stages /stages"
    assert [line for line in lines[:copied] if line.startswith("FROM")][-1] == "FROM base AS chosen"
    late = [line for line in lines if re.search(r"SOURCE_DATE|REVISION|CREATED", line)]
    assert lines[-len(late) :] == [line for line in lines[-len(late) :] if line.startswith(("ARG", "ENV", "LABEL"))]


def test_the_lock_is_installed_with_hashes_before_any_source_is_copied() -> None:
    lines = _instructions()
    lock = lines.index("COPY --from=chosen /chosen/*.txt /tmp/")
    install = next(i for i, line in enumerate(lines) if "/tmp/install.sh /tmp/locked.txt" in line)
    source = lines.index("COPY --from=chosen /chosen/source /source")
    assert lock < install < source
    for line in lines:
        for call in re.findall(r"pip (?:--python \S+ )?(?:install|wheel)[^&]*", line):
            assert "--no-deps" in call, call
            assert "--no-index" in call, call


def test_labels_come_last_and_are_complete() -> None:
    lines = _instructions()
    assert lines[-1].startswith("LABEL ")
    assert sum(line.startswith("LABEL") for line in lines) == 1
    assert set(re.findall(r" ([a-z.]+)=", lines[-1])) == set(LABELS)
    changing = next(i for i, line in enumerate(lines) if line.startswith("ARG VERSION"))
    after = {line.split()[0] for line in lines[changing:]}
    assert after == {"ARG", "ENV", "LABEL"}, "what changes with every commit must not invalidate a layer"


def test_the_command_is_the_stage_and_runs_as_nobody() -> None:
    lines = _instructions()
    assert 'ENTRYPOINT ["/opt/lsdflow/bin/entrypoint"]' in lines
    assert 'CMD ["--help"]' in lines
    assert "USER 65532:65532" in lines
    (environment,) = [line for line in lines if line.startswith("ENV PATH=")]
    for name in ("PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        assert f" {name}=1 " in environment, "only packages of the image are imported, on a read-only root"
    for stage in STAGES:
        assert set(_project(stage)["project"]["scripts"]) == {stage}


def test_the_dockerfile_names_no_registry_no_index_and_no_moving_tag() -> None:
    for forbidden in ("://", ":latest", "ADD ", "trusted-host", "/etc/testbed", "# syntax", "chmod -R"):
        assert forbidden not in DOCKERFILE, forbidden
    bases = [line.split()[1] for line in _instructions() if line.startswith("FROM ")]
    assert bases == ["${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}}", "base", "base", "locked", "base"]


def test_the_dockerfile_keeps_to_what_docker_20_and_podman_4_both_know() -> None:
    for line in _instructions():
        assert not re.search(r"<<|--link|--chmod|--network|--security|--parents|--exclude|type=(?!cache)", line), line


def test_the_context_is_an_allow_list() -> None:
    lines = [x for x in (REPOSITORY / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    assert lines[0] == "*"
    assert not any(line.startswith("!") and re.search(r"git|venv|tests|\*\*$", line[1:-3]) for line in lines)


def _is_let_in(path: str, patterns: list[str]) -> bool:
    """Whether the last pattern that matches a path, or a folder above it, lets it in: buildah asks that of a folder."""
    inside = True
    places = ["/".join(path.split("/")[: n + 1]) for n in range(path.count("/") + 1)]
    for pattern in patterns:
        expression = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*\*", ".*")
        expression = expression.replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, place) for place in places):
            inside = pattern.startswith("!")
    return inside


def test_every_folder_that_is_copied_is_let_into_the_context_itself() -> None:
    """buildah takes a folder out with a pattern of its own, whatever is let in below it; docker searches below."""
    lines = [x for x in (REPOSITORY / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    copies = [line for line in _instructions() if re.match(r"COPY (?!--from)", line)]
    copied = {path for line in copies for path in line.split()[1:-1]}
    assert {"stages", "containers/startup", "containers/installer.lock", "containers/install.sh"} <= copied
    assert [path for path in sorted(copied) if not _is_let_in(path, lines)] == []
    assert _is_let_in("stages/_contract/src", lines)
    assert not _is_let_in("stages/_contract/README.md", lines)
    assert not _is_let_in("tests", lines)


def test_locks_of_the_images_tools_pin_with_hashes_and_name_no_address() -> None:
    locks = sorted((REPOSITORY / "containers").glob("*.lock"))
    assert "installer.lock" in {p.name for p in locks}
    for lock in locks:
        text = lock.read_text()
        pins = re.findall(r"^[a-z0-9].*", text, re.MULTILINE)
        assert all("==" in pin for pin in pins), lock
        assert text.count("--hash=sha256:") >= len(pins) > 0, lock
        assert "://" not in text, lock


def test_the_build_backend_of_the_images_is_the_one_of_every_package() -> None:
    (pin,) = re.findall(r"^(hatchling==\S+)", (REPOSITORY / "containers" / "installer.lock").read_text(), re.MULTILINE)
    for path in (REPOSITORY / "stages").glob("*/pyproject.toml"):
        assert tomllib.loads(path.read_text())["build-system"]["requires"] == [pin], path


def test_the_bake_file_gives_every_image_its_arguments() -> None:
    """`docker buildx bake --print` shows the rest: with_engine/test_images.py."""
    text = (REPOSITORY / "docker-bake.hcl").read_text()
    assert json.loads("[" + re.search(r"matrix += \{ stage = \[(.*)\]", text)[1] + "]") == list(STAGES)
    with_cuda, trainings = (set(json.loads(found)) for found in re.findall(r"contains\((\[.*?\])", text))
    assert with_cuda == {stage for stage in STAGES if (REPOSITORY / "stages" / stage / "cuda.lock").exists()}
    assert trainings == {"train-lsd", "train-acrlsd"}
    assert set(re.findall(r"^ +([A-Z]+) +=", text, re.MULTILINE)) <= set(
        re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)
    )
