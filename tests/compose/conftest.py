"""A real Docker Engine, the real images, and an experiment whose networks train in seconds.

`make test-compose` alone runs these (LSDFLOW_TEST_COMPOSE); where docker, compose or images are missing they fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.testing import micro_network
from lsdflow_launch.init.demo import write_volume
from lsdflow_launch.init.draft import images_text
from lsdflow_launch.init.template import toml_value
from lsdflow_launch.synthetic.image import synthetic_em

collect_ignore_glob = [] if os.environ.get("LSDFLOW_TEST_COMPOSE") else ["test_*.py"]

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE = REPOSITORY / "compose"
# A published one, or the stand-in that the test cluster makes where no registry is in reach.
MONGO_IMAGE = os.environ.get("LSDFLOW_TEST_MONGO_IMAGE", "mongo:6")
SHAPE_VOX, TRAINED_SECTIONS, VOXEL_SIZE_NM = (104, 66, 70), 64, (10.0, 10.0, 10.0)
TABLES: dict[str, dict[str, Any]] = {
    "experiment": {"mode": "mtlsd", "profile": "tiny"},
    "compute": {"workers": 2},
    "prepare": {
        "training": [{"name": "train", "raw": "input/train.hdf"}],
        "target": {"raw": "input/volume.hdf", "truth": "input/volume.hdf"},
    },
    "train-acrlsd": micro_network(4, checkpoints=1),
    "predict": {"block_shape": "28 vox"},
    "watershed": {"block_shape": "36 vox", "context": "8 vox"},
    "segment": {"threshold": 0.5},
}

Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Composed:
    """An experiment and how it is run by compose."""

    folder: Path
    files: tuple[str, ...] = ("compose.yaml",)

    def docker(self, *words: str, **environment: str) -> Finished:
        """`docker compose` with the experiment's files; without LSDFLOW_ variables of our own."""
        options = [part for name in self.files for part in ("-f", str(COMPOSE / name))]
        for name in ("images.env", "compose.env"):
            options += ["--env-file", str(self.folder / name)] if (self.folder / name).exists() else []
        return call("docker", "compose", *options, *words, **environment)

    def up(self) -> Finished:
        """The chain to its end, by the command that compose-env prints."""
        words = ["--attach-dependencies", "--no-attach", "mongo", "end"] if "compose.mongo.yaml" in self.files else []
        return self.docker("up", *words)

    def exit_codes(self) -> dict[str, int]:
        """Service -> exit code of its container."""
        rows = map(json.loads, self.docker("ps", "--all", "--format", "json").stdout.splitlines())
        return {row["Service"]: row["ExitCode"] for row in rows if row["State"] == "exited"}


def call(*command: str | Path, timeout_s: float = 900, **environment: str) -> Finished:
    """Run a command with its output kept."""
    own = ("LSDFLOW_TEST", "LSDFLOW_UID", "LSDFLOW_GID", "MONGO", "COMPOSE")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout_s, env={**plain, **environment}
    )


def lsdflow(*arguments: str | Path) -> Finished:
    """The front command of this clone."""
    return call(sys.executable, "-c", "from lsdflow_launch.cli import main; main()", *arguments)


def write_experiment(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write DIR/experiment.toml, named as its folder."""
    complete = {**tables, "experiment": {"name": folder.name, **tables["experiment"]}}
    parts = (f"[{name}]\n" + "".join(f"{k} = {toml_value(v)}\n" for k, v in t.items()) for name, t in complete.items())
    (folder / "experiment.toml").write_text("\n".join(parts))


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Docker Engine answers, compose is here, and so are all images."""
    if shutil.which("docker") is None or call("docker", "compose", "version").returncode != 0:
        pytest.exit("these tests need docker and docker compose (tests/cluster/bed/bed.sh up brings up both)", 1)
    names = [line.partition("=")[2] for line in images_text(STAGES).splitlines() if not line.startswith("#")]
    for name in (*names, MONGO_IMAGE):
        found = call("docker", "image", "inspect", name)
        if found.returncode != 0:
            pytest.exit(f"no image {name}: {found.stderr.strip()} (make images; DOCKER_HOST?)", 1)


@pytest.fixture(scope="session")
def workspace() -> Iterator[Path]:
    """A folder with a space in its name that the engine can bind."""
    folder = Path(tempfile.mkdtemp(prefix="lsdflow compose ")).resolve()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def untouched(workspace: Path) -> Path:
    """Volumes and pins, before any stage."""
    folder = workspace / "untouched"
    raw, labels = synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, seed=3)
    write_volume(folder / "input" / "train.hdf", raw[:TRAINED_SECTIONS], labels[:TRAINED_SECTIONS])
    write_volume(folder / "input" / "volume.hdf", raw[TRAINED_SECTIONS:], labels[TRAINED_SECTIONS:])
    (folder / "images.env").write_text(images_text(STAGES) + f"MONGO_IMAGE={MONGO_IMAGE}\n")
    return folder


@pytest.fixture(scope="session")
def copied(untouched: Path, workspace: Path) -> Callable[..., Path]:
    """A function that makes an experiment before its first stage: its name, tables over the common ones."""

    def copy(name: str, **more: dict[str, Any]) -> Path:
        folder = workspace / f"{name}-{workspace.name[-6:]}".replace("_", "-")
        shutil.copytree(untouched, folder)
        write_experiment(folder, TABLES | more)
        return folder

    return copy


@pytest.fixture(scope="session")
def reference(copied: Callable[..., Path]) -> Path:
    """The experiment by `lsdflow run`, here, one block after another."""
    folder = copied("reference")
    done = lsdflow("run", folder, "--set", "compute.runner=serial")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def chain(copied: Callable[..., Path]) -> Iterator[Composed]:
    """The experiment by compose, with a MongoDB of its own, run once to its end."""
    folder = copied("chain", store={"engine": "mongo"})
    composed = Composed(folder, ("compose.yaml", "compose.mongo.yaml"))
    made = lsdflow("compose-env", folder)
    assert made.returncode == 0, made.stderr
    try:
        done = composed.up()
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        yield composed
    finally:
        composed.docker("down", "--volumes", "--timeout", "5")
