"""A real engine and a real Apptainer: images, SIFs, and an experiment made by the commands of the clone.

These tests are called by `make test-containers` only; where the engine or Apptainer is missing they fail and say so.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from lsdflow_contract.experiment import GPU_STAGES, STAGES
from lsdflow_contract.testing import micro_network

REPOSITORY = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
# Nobody whom an image or this machine knows.
ANY_USER = "23456:34567"
MICRO = micro_network(2, checkpoints=1)
SETTINGS = (
    *(f"{s}.{key}={json.dumps(value)}" for s in ("train-lsd", "train-acrlsd") for key, value in MICRO.items()),
    "watershed.block_shape=16 vox",
    "watershed.context=8 vox",
    "predict.block_shape=28 vox",
)
DEMO = (
    "import sys; from pathlib import Path; from lsdflow_launch.init.demo import make_demo;"
    "make_demo(Path(sys.argv[1]), (112, 66, 70), seed=3, mode='acrlsd')"
)


Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Made:
    """An image and its SIF, and how long each took."""

    stage: str
    version: str
    image: str
    sif: Path
    revision: str
    build_s: float
    convert_s: float


class Bench:
    """How the tests call things: the clone's commands, images by docker, SIFs by singularity."""

    settings = SETTINGS
    commands = BIN

    def call(self, *command: str | Path, timeout_s: float = 300, **environment: str) -> Finished:
        """Run a command with its output kept."""
        words = [str(word) for word in command]
        env = {**os.environ, **environment}
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s, env=env)

    def version_of(self, folder: str) -> str:
        """The version in a package's pyproject.toml."""
        text = (REPOSITORY / "stages" / folder / "pyproject.toml").read_text()
        return str(tomllib.loads(text)["project"]["version"])

    def image_version(self, stage: str) -> str:
        """The version of the stage's image, the variant for CPUs."""
        return self.version_of(stage) + ("-cpu" if stage in GPU_STAGES else "")

    def options(self, root: str | Path, *more: str) -> list[str]:
        """Options of a stage for the small experiment in the folder root."""
        return ["--experiment", f"{root}/experiment.toml", *(w for s in (*SETTINGS, *more) for w in ("--set", s))]

    def docker_command(self, stage: str, folder: Path, *words: str, extra: tuple[str, ...] = ()) -> list[str]:
        """`docker run` of a stage as any user: read-only, no rights, no network, no home, the folder at /experiment."""
        hard = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none"]
        place = ["--env", "HOME=/nonexistent", "--volume", f"{folder}:/experiment"]
        image = f"lsdflow/{stage}:{self.image_version(stage)}"
        return ["docker", "run", "--user", ANY_USER, *hard, *place, *extra, image, *words]

    def docker(self, stage: str, folder: Path, *words: str, extra: tuple[str, ...] = ()) -> Finished:
        """Run a stage's image to its end, and remove the container."""
        return self.call(*self.docker_command(stage, folder, *words, extra=("--rm", *extra)))

    def singularity(self, sif: Path, *words: str, extra: tuple[str, ...] = (), **environment: str) -> Finished:
        """`singularity exec` as an unprivileged user, as the wrappers do it."""
        hard = ["--containall", "--no-home", "--cleanenv", "--no-eval", "--pwd", "/"]
        return self.call(*_as_somebody(), "singularity", "exec", *hard, *extra, sif, *words, **environment)


def _as_somebody() -> list[str]:
    """Words before a command that must not run as root: the cluster's user, or nobody."""
    if os.getuid() != 0:
        return []
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = "alice" if "alice" in known else "nobody"
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--inh-caps=-all"]


def open_to_all(folder: Path) -> Path:
    """Let any user write in the folder."""
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def bench() -> Bench:
    """The calls."""
    return Bench()


@pytest.fixture(scope="session")
def workspace() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="lsdflow-containers-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(bench: Bench) -> None:
    """Docker Engine answers and Apptainer is here."""
    missing = [name for name in ("docker", "singularity") if shutil.which(name) is None]
    if missing:
        pytest.fail(f"these tests need {' and '.join(missing)} (see tests/cluster: it brings up both)", pytrace=False)
    asked = bench.call("docker", "info", "--format", "{{.ServerVersion}}")
    if asked.returncode != 0:
        pytest.fail(f"no Docker Engine answers: {asked.stderr.strip()} (DOCKER_HOST?)", pytrace=False)


@pytest.fixture(scope="session")
def made(engine: None, bench: Bench, workspace: Path) -> dict[str, Made]:
    """All images built (cpu), each converted while the next is built; SIFs stay in $LSDFLOW_TEST_SIF_DIR.

    While working on the tests: LSDFLOW_KEEP_IMAGES=1 takes the images that are there.
    """
    sifs = Path(os.environ.get("LSDFLOW_TEST_SIF_DIR", REPOSITORY / ".cache" / "sif")).absolute()
    found: dict[str, Made] = {}
    with ThreadPoolExecutor(1) as converter:
        waiting = {}
        for stage in STAGES:
            revision, build_s = _build(bench, stage)
            waiting[stage] = revision, build_s, converter.submit(_convert, bench, stage, sifs)
        for stage, (revision, build_s, future) in waiting.items():
            sif, convert_s = future.result()
            version = bench.image_version(stage)
            image = f"lsdflow/{stage}:{version}"
            found[stage] = Made(stage, version, image, _in_reach(sif, workspace), revision, build_s, convert_s)
    return found


def _build(bench: Bench, stage: str) -> tuple[str, float]:
    """Build the image; the commit it was built at (somebody may commit while the tests run), and the seconds."""
    started = time.monotonic()
    revision = bench.call("git", "-C", REPOSITORY, "rev-parse", "HEAD").stdout.strip()
    if os.environ.get("LSDFLOW_KEEP_IMAGES"):
        form = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
        name = f"lsdflow/{stage}:{bench.image_version(stage)}"
        revision = (
            bench.call("docker", "image", "inspect", "--format", form, name).stdout.strip().removesuffix("-dirty")
        )
    else:
        _images(bench, "build", stage, TORCH="cpu")
    return revision, time.monotonic() - started


def _convert(bench: Bench, stage: str, folder: Path) -> tuple[Path, float]:
    started = time.monotonic()
    output = _images(bench, "convert", stage, SIF_DIR=str(folder), TORCH="cpu")
    return Path(output.strip().splitlines()[-1].split()[0]), time.monotonic() - started


def _in_reach(sif: Path, workspace: Path) -> Path:
    """The file, or a link to it where a checkout is in a folder that other users may not enter."""
    if all(folder.stat().st_mode & 0o001 for folder in sif.parents):
        return sif
    link = workspace / sif.name
    try:
        link.hardlink_to(sif)
    except OSError:  # another file system
        shutil.copy2(sif, link)
    return link


def _images(bench: Bench, command: str, stage: str, **environment: str) -> str:
    program = REPOSITORY / "containers" / "images.py"
    done = bench.call(sys.executable, program, command, stage, timeout_s=900, **environment)
    if done.returncode != 0:
        pytest.fail(f"images.py {command} {stage}: {done.stderr[-3000:]}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="session")
def reference(bench: Bench, workspace: Path) -> Path:
    """The whole experiment, made by the commands of the clone, one process each."""
    if not (BIN / "train-lsd").exists():
        pytest.fail(f"no commands in {BIN}: make setup", pytrace=False)
    folder = workspace / "reference"
    subprocess.run([sys.executable, "-c", DEMO, str(folder)], check=True, env={**os.environ, "LSDFLOW_BIN": str(BIN)})
    shutil.copytree(folder, workspace / "untouched")
    for stage in STAGES:
        done = bench.call(BIN / stage, "run", *bench.options(folder, "compute.runner=serial"))
        assert done.returncode == 0, f"{stage}: {done.stderr}"
        if stage == "train-acrlsd":
            shutil.copytree(folder, workspace / "trained", symlinks=True)
    return folder


@pytest.fixture(scope="session")
def with_lsds(engine: None, bench: Bench, workspace: Path) -> Path:
    """Another experiment, up to its LSD network, made by the commands of the clone, open to any user."""
    folder = workspace / "with-lsds"
    subprocess.run([sys.executable, "-c", DEMO, str(folder)], check=True, env={**os.environ, "LSDFLOW_BIN": str(BIN)})
    for stage in ("prepare", "train-lsd"):
        done = bench.call(BIN / stage, "run", *bench.options(folder))
        assert done.returncode == 0, f"{stage}: {done.stderr}"
    return open_to_all(folder)


@pytest.fixture
def fresh(reference: Path, workspace: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The experiment before its first stage, open to any user, for one test."""
    folder = workspace / request.node.name.replace("[", "-").replace("]", "")
    shutil.copytree(workspace / "untouched", folder)
    yield open_to_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def trained(reference: Path, workspace: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The experiment with its two trained networks, open to any user, for one test."""
    folder = workspace / request.node.name.replace("[", "-").replace("]", "")
    shutil.copytree(workspace / "trained", folder, symlinks=True)
    yield open_to_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
