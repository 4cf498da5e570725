"""Dockerfiles as text: one shape, the right packages, lock before source, labels last, and no address in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = ("prepare", "train-lsd", "train-acrlsd", "predict", "watershed", "agglomerate", "segment", "evaluate")
LABELS = (
    *(f"org.opencontainers.image.{n}" for n in ("title", "version", "revision", "created", "source", "documentation")),
    *(f"org.opencontainers.image.{n}" for n in ("licenses", "vendor", "base.name", "base.digest")),
    "lsdflow.stage",
    "lsdflow.contract",
)


def _text(stage: str) -> str:
    return (REPOSITORY / "containers" / stage / "Dockerfile").read_text()


def _with_backend(text: str, backend: str) -> str:
    """What an engine makes of the variable BACKEND; empty for torch."""
    text = re.sub(r"\$\{BACKEND:\+([^}]*)\}", r"\1" if backend else "", text)
    return re.sub(r"\$\{BACKEND:-([^}]*)\}", backend or r"\1", text)


def _instructions(stage: str, backend: str = "") -> list[str]:
    """Instructions with their continuation lines joined, comments left out."""
    lines = [line for line in _text(stage).splitlines() if line.strip() and not line.startswith("#")]
    return _with_backend(re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)), backend).splitlines()


def _project(folder: str) -> dict:
    return tomllib.loads((REPOSITORY / "stages" / folder / "pyproject.toml").read_text())


IMAGES = [(stage, "") for stage in STAGES] + [(stage, "tensorflow") for stage in ("train-lsd", "train-acrlsd")]


def _uses_torch(stage: str) -> bool:
    return (REPOSITORY / "stages" / stage / "cuda.lock").exists()


def test_every_stage_has_a_dockerfile_and_nothing_else_has() -> None:
    found = {p.parent.name for p in (REPOSITORY / "containers").glob("*/Dockerfile")}
    assert found == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_dockerfiles_differ_only_in_stage_packages_and_torch(stage: str) -> None:
    def shape(name: str) -> list[str]:
        kept = []
        for line in _instructions(name):
            if re.match(r"COPY stages/\S+ /source/|ARG TORCH|ARG BACKEND", line):
                continue
            plain = re.sub(r" NVIDIA_\w+=\S+| lsdflow\.(torch|backend)=\S+", "", line)
            plain = re.sub(r"(?:\$\{TORCH\}|requirements)\.lock", "LOCK", plain)
            kept.append(re.sub(rf"(?<![\w-]){name}(?![\w-])", "STAGE", plain))
        return kept

    assert shape(stage) == shape("watershed")


@pytest.mark.parametrize(("stage", "backend"), IMAGES)
def test_the_image_gets_the_packages_that_the_stage_needs_and_no_other(stage: str, backend: str) -> None:
    text = "\n".join(_instructions(stage, backend))
    copied = re.findall(r"^COPY stages/(\S+) /source/\1$", text, re.MULTILINE)
    needed, waiting = set(), [stage, *([f"_{backend}"] if backend else [])]
    while waiting:
        folder = waiting.pop()
        if folder not in needed:
            needed.add(folder)
            sources = _project(folder).get("tool", {}).get("uv", {}).get("sources", {})
            waiting += [Path(s["path"]).name for s in sources.values()]
    assert set(copied) == needed


@pytest.mark.parametrize(("stage", "backend"), IMAGES)
def test_the_lock_is_installed_with_hashes_before_any_source_is_copied(stage: str, backend: str) -> None:
    lines = _instructions(stage, backend)
    lock = next(i for i, line in enumerate(lines) if line.startswith("COPY stages/") and ".lock" in line)
    install = next(i for i, line in enumerate(lines) if "/tmp/install.sh /tmp/locked.txt" in line)
    source = next(i for i, line in enumerate(lines) if "/source/" in line)
    assert lock < install < source
    for line in lines:
        for call in re.findall(r"pip (?:--python \S+ )?(?:install|wheel)[^&]*", line):
            assert "--no-deps" in call, call
            assert "--no-index" in call or ("--require-hashes" in call and "--only-binary=:all:" in call), call
    name = "${TORCH}.lock" if _uses_torch(stage) else "requirements.lock"
    assert lines[lock] == f"COPY stages/{'_' + backend if backend else stage}/{name} /tmp/locked.txt"


@pytest.mark.parametrize("stage", STAGES)
def test_labels_come_last_and_are_complete(stage: str) -> None:
    lines = _instructions(stage)
    assert lines[-1].startswith("LABEL ")
    assert sum(line.startswith("LABEL") for line in lines) == 1
    wanted = {*LABELS, *(["lsdflow.torch"] if _uses_torch(stage) else [])}
    if (stage, "tensorflow") in IMAGES:
        wanted.add("lsdflow.backend")
    assert set(re.findall(r" ([a-z.]+)=", lines[-1])) == wanted
    changing = next(i for i, line in enumerate(lines) if line.startswith("ARG VERSION"))
    after = {line.split()[0] for line in lines[changing:]}
    assert after == {"ARG", "ENV", "LABEL"}, "what changes with every commit must not spoil a layer"


@pytest.mark.parametrize("stage", STAGES)
def test_the_command_is_the_stage_and_runs_as_nobody(stage: str) -> None:
    lines = _instructions(stage)
    assert f'ENTRYPOINT ["/opt/lsdflow/bin/{stage}"]' in lines
    assert 'CMD ["--help"]' in lines
    assert "USER 65532:65532" in lines
    assert set(_project(stage)["project"]["scripts"]) == {stage}


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_in_a_dockerfile_names_a_registry_an_index_or_a_moving_tag(stage: str) -> None:
    text = _text(stage)
    for forbidden in ("://", ":latest", "ADD ", "trusted-host", "/etc/testbed", "# syntax", "chmod -R"):
        assert forbidden not in text, forbidden
    bases = [line.split()[1] for line in _instructions(stage) if line.startswith("FROM ")]
    assert set(bases) == {"${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}}", "locked"}
    assert bases[0] == bases[-1], "the final image stands on the base alone"


@pytest.mark.parametrize("stage", STAGES)
def test_dockerfiles_keep_to_what_docker_20_and_podman_4_both_know(stage: str) -> None:
    for line in _instructions(stage):
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
    """buildah takes a folder out with a pattern of its own, whatever is let in below it; docker looks below."""
    lines = [x for x in (REPOSITORY / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    copies = [line for s in STAGES for line in _instructions(s) if re.match(r"COPY (?!--from)", line)]
    copied = {path for line in copies for path in line.split()[1:-1]}
    assert {"stages/_contract", "containers/startup", "containers/build.lock", "containers/install.sh"} <= copied
    assert [path for path in sorted(copied) if not _is_let_in(path.replace("${TORCH}", "cpu"), lines)] == []
    assert not _is_let_in("stages/_contract/README.md", lines)
    assert not _is_let_in("tests", lines)


def test_locks_of_the_images_tools_pin_with_hashes_and_name_no_address() -> None:
    locks = sorted((REPOSITORY / "containers").glob("*.lock"))
    assert "build.lock" in {p.name for p in locks}
    for lock in locks:
        text = lock.read_text()
        pins = re.findall(r"^[a-z0-9].*", text, re.MULTILINE)
        assert all("==" in pin for pin in pins), lock
        assert text.count("--hash=sha256:") >= len(pins) > 0, lock
        assert "://" not in text, lock


def test_the_build_backend_of_the_images_is_the_one_of_every_package() -> None:
    (pin,) = re.findall(r"^(hatchling==\S+)", (REPOSITORY / "containers" / "build.lock").read_text(), re.MULTILINE)
    for path in (REPOSITORY / "stages").glob("*/pyproject.toml"):
        assert tomllib.loads(path.read_text())["build-system"]["requires"] == [pin], path
