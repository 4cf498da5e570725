"""Publish, pull, run: a real registry on loopback, docker and Apptainer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Bench, Made

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIGURATION = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Debian's docker-registry, empty; its address."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.fail("no docker-registry here (see tests/cluster: it installs it)", pytrace=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(CONFIGURATION.format(folder=tmp_path / "registry", port=port))
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen([program, "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log)
    try:
        _wait_until_it_answers(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"the registry did not start: exit code {process.poll()}", pytrace=False)


def _forget(bench: Bench, name: str) -> None:
    """Remove what docker knows of the image in the registry; other tests name the image by its id."""
    form = "{{.Repository}}:{{.Tag}} {{.Repository}}@{{.Digest}}"
    for known in bench.call("docker", "images", "--digests", "--format", form, name).stdout.split():
        bench.call("docker", "rmi", known)


@pytest.mark.proves("NEW-07")
def test_a_published_image_is_pulled_by_its_digest_by_docker_and_as_a_sif_and_runs(
    made: dict[str, Made], fresh: Path, bench: Bench, registry: str, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"  # its ledger gets a line
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    name, version = f"{registry}/lab/prepare", made["prepare"].version
    try:
        published = bench.call("make", "-C", clone, "--silent", "publish", "STAGE=prepare", f"REGISTRY={registry}/lab")
        assert published.returncode == 0, published.stderr
        pin = published.stdout.strip()
        digest = pin.partition("@")[2]
        assert pin == f"{name}:{version}@{digest}"
        line = (clone / "containers" / "published.tsv").read_text().splitlines()[-1]
        assert line.split("\t")[:3] == ["prepare", version, digest]

        (fresh / "images.env").write_text(f"PREPARE_IMAGE={pin}\n")
        pull = [bench.commands / "lsdflow", "pull", fresh, "--to", "prepare", "--engine"]
        _forget(bench, name)
        by_docker = bench.call(*pull, "docker")
        assert f"prepare: {pin} pulled" in by_docker.stdout, by_docker.stderr
        assert f"prepare: {pin} is here" in bench.call(*pull, "docker").stdout

        sifs = tmp_path / "sifs"
        # Apptainer, unlike docker, speaks TLS to a registry on loopback, too.
        as_sif = bench.call(*pull, "singularity", "--images", sifs, timeout_s=600, APPTAINER_NOHTTPS="1")
        assert f"prepare: {pin} pulled" in as_sif.stdout, as_sif.stderr
        assert [path.name for path in sifs.iterdir()] == [f"prepare_{version}_{digest[7:19]}.sif"]
        options = ["--backend", "container", "--engine", "singularity", "--images", sifs]
        ran = bench.call(bench.commands / "lsdflow", "run", fresh, "--to", "prepare", *options)
        assert ran.returncode == 0, ran.stderr
        assert digest in (fresh / "manifests" / "prepare.json").read_text()
    finally:
        _forget(bench, name)
