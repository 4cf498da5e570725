"""What the tests on a cluster share: the user's copy of the clone, the images, one whole run, and its local twin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import REPOSITORY, Cluster
from desk import TIMES, Desk, Images, copy_of_clone, drop_databases, labels_of, login_environment, make, timed
from experiments import copy_finished, run_locally, write_volumes
from submission import Submission

from lsdflow_contract.experiment import BLOCK_STAGES, GPU_STAGES, STAGES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Times and sizes of what was done, as a table."""
    terminalreporter.section("on the cluster")
    for what, value in TIMES:
        terminalreporter.write_line(f"{what:<66} {value:>10}")


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
        variant = f"-{os.environ.get('TORCH', 'cpu')}" if stage in GPU_STAGES else ""
        own = f"{stage}_{project['project']['version']}{variant}_*.sif"
        there = sorted(cluster.sif_folder.glob(own), key=lambda path: path.stat().st_mtime)
        assert there, f"no {own} in {cluster.sif_folder}"
        labels = labels_of(there[-1])
        version, digest = labels["org.opencontainers.image.version"], labels["lsdflow.image.digest"]
        pins[stage], sifs[stage] = f"lsdflow/{stage}:{version}@{digest}", there[-1]
        TIMES.append((f"{there[-1].name}", f"{there[-1].stat().st_size / 1e6:.0f} MB"))
    return Images(pins, sifs)


@pytest.fixture(scope="session")
def desk(cluster: Cluster, images: Images) -> Iterator[Desk]:
    """What a user of a cluster has on the login node: the repository, and an environment with lsdflow alone."""
    home = cluster.shared / f"tests-{os.getpid()}"
    with timed("the user's clone and command"):
        lsdflow = login_environment(copy_of_clone(home / "clone"), home / "environment")
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
        submission.assert_completed(seconds=1500)
    return submission


@pytest.fixture(scope="session")
def reference(desk: Desk, whole: Submission) -> Path:
    """The same trained networks by the commands of the clone: one block after another, files engine, no container."""
    folder = desk.write("reference")
    copy_finished(whole.experiment, folder, until="predict")
    with timed("the local run of predict to evaluate, serial"):
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
