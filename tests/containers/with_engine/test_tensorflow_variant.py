"""The variant of train-acrlsd with tensorflow, at work as any user: read-only, no network, no home, no rights.

Called by `make test-containers-tensorflow` alone; CI does not build it. Both images of the stage are built, for CPUs.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest

if TYPE_CHECKING:
    from conftest import Bench, Finished

REPOSITORY = Path(__file__).resolve().parents[3]
STAGE = "train-acrlsd"
DIGEST = "sha256:" + "3" * 64
HARD = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none", "--tmpfs=/tmp")


@dataclass(frozen=True)
class Images:
    """The two images of the stage, and how to run one."""

    bench: Bench
    torch: str
    tensorflow: str

    def labels(self, image: str) -> dict[str, str]:
        """Its labels."""
        form = "{{json .Config.Labels}}"
        return json.loads(self.bench.call("docker", "image", "inspect", "--format", form, image).stdout)

    def run(self, image: str, folder: Path, verb: str, *more: str) -> Finished:
        """A verb of the stage with backend = "tensorflow", as a user whom nobody knows."""
        place = ("--user=23456:34567", "--env=HOME=/nonexistent", f"--env=LSDFLOW_IMAGE_DIGEST={DIGEST}")
        options = self.bench.options("/experiment", f"{STAGE}.backend=tensorflow", *more)
        words = ("docker", "run", "--rm", *HARD, *place, f"--volume={folder}:/experiment", image, verb, *options)
        return self.bench.call(*words, timeout_s=600)


@pytest.fixture(scope="module")
def images(engine: None, bench: Bench) -> Images:
    """Both images, built; with LSDFLOW_KEEP_IMAGES=1 those that are there."""
    version = bench.version_of(STAGE)
    names = {"torch": f"lsdflow/{STAGE}:{version}-cpu", "tensorflow": f"lsdflow/{STAGE}:{version}-tensorflow"}
    for backend in names:
        words = ("make", "--no-print-directory", "-C", REPOSITORY, "image", f"STAGE={STAGE}", "TORCH=cpu")
        done = bench.call(*words, f"BACKEND={backend}", f"PYTHON={sys.executable}", timeout_s=1800)
        assert done.returncode == 0, done.stderr[-3000:]
    return Images(bench, **names)


def test_labels_distinguish_the_variants_and_the_stage_is_the_same(images: Images, bench: Bench) -> None:
    own, other = images.labels(images.tensorflow), images.labels(images.torch)
    assert (own["lsdflow.backend"], other["lsdflow.backend"]) == ("tensorflow", "torch")
    assert own["lsdflow.stage"] == other["lsdflow.stage"] == STAGE
    assert own["org.opencontainers.image.version"] == other["org.opencontainers.image.version"] + "-tensorflow"
    done = bench.call("docker", "run", "--rm", "--network=none", images.tensorflow, "--version")
    assert done.stdout.startswith(f"{STAGE} {bench.version_of(STAGE)} (contract {bench.version_of('_contract')})")


def test_the_variant_holds_tensorflow_and_the_other_image_nothing_of_it(images: Images, bench: Bench) -> None:
    listing = "cd /opt/lsdflow/lib/python3.11/site-packages && ls -d *tensorflow* keras* 2>/dev/null; true"
    found = {}
    for image in (images.torch, images.tensorflow):
        words = ("docker", "run", "--rm", "--network=none", "--entrypoint=bash", image, "-c", listing)
        found[image] = bench.call(*words).stdout.split()
    assert found[images.torch] == []
    assert {"tensorflow", "lsdflow_tensorflow"} <= set(found[images.tensorflow])


def test_the_image_without_tensorflow_refuses_and_names_the_variant(images: Images, with_lsds: Path) -> None:
    for verb in ("validate", "run"):
        done = images.run(images.torch, with_lsds, verb)
        assert done.returncode == 78
        output = done.stdout + done.stderr
        assert output.count("no tensorflow") == 1
        assert "make image STAGE=... BACKEND=tensorflow" in output
    assert not (with_lsds / "train" / STAGE).exists()


def test_a_training_in_the_variant_is_one_that_the_clone_finds_whole(
    images: Images, with_lsds: Path, bench: Bench
) -> None:
    for verb in ("validate", "run"):
        done = images.run(images.tensorflow, with_lsds, verb)
        assert done.returncode == 0, f"{verb}: {done.stdout}{done.stderr}"
    layout = ExperimentLayout(with_lsds)
    manifest = read_manifest(layout, STAGE)
    revision = images.labels(images.tensorflow)["org.opencontainers.image.revision"]
    assert (manifest.writer.image_digest, manifest.writer.revision) == (DIGEST, revision)
    losses = with_lsds / "train" / STAGE / "loss.csv"
    assert losses.stat().st_uid == 23456
    with losses.open() as file:
        assert all(float(row["loss"]) > 0 for row in csv.DictReader(file))
    done = bench.call(bench.commands / STAGE, "verify", *bench.options(with_lsds))
    assert done.returncode == 0, done.stdout + done.stderr
