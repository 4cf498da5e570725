"""The unprivileged user at work: images and SIFs of the checkout, a copy of the clone, experiments on the storage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster import REPOSITORY, Cluster
from experiments import database_of, tables, write_experiment
from pymongo import MongoClient
from submission import Submission

UV = REPOSITORY / ".venv" / "tools" / "bin" / "uv"
# What took how long, or is how large: the table at the end.
TIMES: list[tuple[str, str]] = []


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Note how long something took for the table at the end."""
    begun = time.monotonic()
    yield
    TIMES.append((what, f"{time.monotonic() - begun:.0f} s"))


@dataclass(frozen=True)
class Images:
    """The SIFs of the checkout: pins for images.env, and the file of each stage."""

    pins: dict[str, str]
    sifs: dict[str, Path]

    def env(self, **changed: str) -> str:
        """The text of images.env, some stages' pins changed (train_lsd="lsdflow/train-lsd:...")."""
        pins = {**self.pins, **{stage.replace("_", "-"): pin for stage, pin in changed.items()}}
        return "".join(f"{stage.upper().replace('-', '_')}_IMAGE={pin}\n" for stage, pin in pins.items())


def labels_of(sif: Path) -> dict[str, str]:
    """The labels of a SIF."""
    command = ["singularity", "inspect", "--json", "--labels", str(sif)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout)["data"]["attributes"]["labels"])


def make(target: str, **variables: str | Path) -> None:
    """Run a target of the Makefile; its output goes to the terminal."""
    words = [f"{name}={value}" for name, value in variables.items()]
    subprocess.run(["make", "--no-print-directory", "-C", str(REPOSITORY), target, *words], check=True)


@dataclass
class Desk:
    """The unprivileged user at work: a copy of the clone, the command lsdflow, experiments on shared storage."""

    cluster: Cluster
    images: Images
    lsdflow: Path
    made: list[Path] = field(default_factory=list)

    def write(self, name: str, **more: dict[str, object]) -> Path:
        """A new experiment of the user: its file and its pins."""
        folder = self.cluster.shared / name
        assert not folder.exists(), folder
        write_experiment(folder, tables(self.cluster, name, more))
        (folder / "images.env").write_text(self.images.env())
        self.made.append(folder)
        return folder

    def give(self, folder: Path) -> None:
        """All of an experiment becomes the user's own."""
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{self.cluster.user}:", str(folder)], check=True)

    def submit(self, folder: Path, *options: str) -> Submission:
        """`lsdflow submit`, as the user."""
        self.give(folder)
        self.cluster.run(self.lsdflow, "submit", folder, *options)
        return Submission.of(self.cluster, folder)


def drop_databases(cluster: Cluster) -> None:
    """Those of this session's experiments."""
    client: MongoClient[dict[str, object]] = MongoClient(cluster.uri_file.read_text().strip())
    for name in client.list_database_names():
        if name.startswith(database_of(cluster, "")):
            for collection in client[name].list_collection_names():
                client[name].drop_collection(collection)


def copy_of_clone(folder: Path) -> Path:
    """The files of the checkout as git knows them, changes included."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, files.stdout.split("\0")):
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


def login_environment(clone: Path, environment: Path) -> Path:
    """What a login node needs: lsdflow alone, made from its lock. Returns the command."""
    python = environment / "bin" / "python"
    packages = [part for name in ("_contract", "_command", "_launch") for part in ("-e", f"stages/{name}")]
    for words in (
        ["venv", "--quiet", "--python", os.environ.get("LSDFLOW_CLUSTER_PYTHON", "/usr/bin/python3"), environment],
        ["pip", "sync", "--quiet", "--python", python, "--require-hashes", "stages/_launch/requirements.lock"],
        ["pip", "install", "--quiet", "--python", python, "--no-deps", *packages],
    ):
        subprocess.run([UV, *words], cwd=clone, check=True)
    return environment / "bin" / "lsdflow"
