"""What the tests on a cluster share: the user's copy of the clone, the images, one whole run, and its local twin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pymongo import MongoClient

sys.path.insert(0, str(Path(__file__).parent))

from cluster import REPOSITORY, Cluster
from experiments import BLOCK_STAGES, copy_finished, database_of, run_locally, tables, write_experiment, write_volumes
from submission import Submission

from lsdflow_contract.experiment import STAGES

UV = REPOSITORY / ".venv" / "tools" / "bin" / "uv"
TIMES: list[tuple[str, str]] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Times and sizes of what was done, as a table."""
    terminalreporter.section("on the cluster")
    for what, value in TIMES:
        terminalreporter.write_line(f"{what:<66} {value:>10}")


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Note how long something took for the table at the end."""
    begun = time.monotonic()
    yield
    TIMES.append((what, f"{time.monotonic() - begun:.0f} s"))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running cluster, with at least two nodes that take jobs."""
    found = Cluster.found()
    nodes = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle,mixed,allocated", "--format=%N"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(set(nodes.stdout.split())) >= 2, f"two nodes are needed: {nodes.stdout}"
    return found


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


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> Images:
    """Images and SIFs of this checkout. LSDFLOW_CLUSTER_IMAGES=keep takes the newest SIFs there are."""
    if os.environ.get("LSDFLOW_CLUSTER_IMAGES") != "keep":
        with timed("images of eight stages"):
            make("images")
        with timed("SIFs of eight stages"):
            make("sifs", SIF_DIR=cluster.sif_folder)
    pins, sifs = {}, {}
    for stage in STAGES:
        project = tomllib.loads((REPOSITORY / "stages" / stage / "pyproject.toml").read_text())
        ours = f"{stage}_{project['project']['version']}_*.sif"
        there = sorted(cluster.sif_folder.glob(ours), key=lambda path: path.stat().st_mtime)
        assert there, f"no {ours} in {cluster.sif_folder}"
        labels = labels_of(there[-1])
        version, digest = labels["org.opencontainers.image.version"], labels["lsdflow.image.digest"]
        pins[stage], sifs[stage] = f"lsdflow/{stage}:{version}@{digest}", there[-1]
        TIMES.append((f"{there[-1].name}", f"{there[-1].stat().st_size / 1e6:.0f} MB"))
    return Images(pins, sifs)


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


def _login_environment(clone: Path, environment: Path) -> Path:
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


@pytest.fixture(scope="session")
def desk(cluster: Cluster, images: Images) -> Iterator[Desk]:
    """What a user of a cluster has on the login node: the repository, and an environment with lsdflow alone."""
    home = cluster.shared / f"tests-{os.getpid()}"
    with timed("the user's clone and command"):
        lsdflow = _login_environment(copy_of_clone(home / "clone"), home / "environment")
    user = replace(cluster, shared=home)
    found = Desk(user, images, lsdflow)
    found.give(home)
    yield found
    for folder in found.made:
        if (folder / "runs" / "submit").exists():
            user.run("scancel", *(number for _, _, number in Submission.of(user, folder).rows()), check=False)
    if not os.environ.get("LSDFLOW_CLUSTER_KEEP"):
        drop_databases(user)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def whole(desk: Desk) -> Submission:
    """The demo, submitted as one chain from prepare to evaluate, with everything kept in MongoDB."""
    folder = desk.write("whole")
    write_volumes(folder)
    with timed("the whole chain, submitted: 8 stages, 2 nodes"):
        submission = desk.submit(folder)
        submission.assert_completed(seconds=900)
    return submission


@pytest.fixture(scope="session")
def reference(desk: Desk, whole: Submission) -> Path:
    """The same trained networks by the commands of the clone: one block after another, files engine, no container."""
    folder = desk.write("reference")
    copy_finished(whole.experiment, folder, until="predict")
    with timed("the local run of predict to segment, serial"):
        run_locally(folder, BLOCK_STAGES)
    return folder


@pytest.fixture
def copied(desk: Desk, whole: Submission) -> Callable[..., Path]:
    """Make a copy of the trained experiment under another name, with a database of its own."""

    def copy(name: str, **more: dict[str, object]) -> Path:
        folder = desk.write(name, **more)
        copy_finished(whole.experiment, folder, until="predict")
        return folder

    return copy
