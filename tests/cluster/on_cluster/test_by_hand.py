"""One stage by `sbatch slurm_wrappers/<stage>.sbatch EXPERIMENT`, as an ordinary user in an empty folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk, timed
from experiments import manifest, tables, write_experiment, write_volumes

STAGE = "prepare"


@pytest.fixture
def folder(desk: Desk) -> Iterator[Path]:
    """A folder of the user with nothing in it but an experiment, whose volumes are elsewhere."""
    folder, data = desk.cluster.shared / "by-hand", desk.cluster.shared / "data-by-hand"
    write_volumes(data)
    volumes = {"training": [{"name": "train", "raw": str(data / "input" / "train.hdf")}]}
    target = {"raw": str(data / "input" / "volume.hdf")}
    more = {"prepare": {**volumes, "target": target}, "store": {"engine": "files"}}
    write_experiment(folder / "exp", tables(desk.cluster, "by-hand", more))
    (folder / "exp" / "images.env").write_text(desk.images.env())
    for made in (folder, data):
        desk.give(made)
    yield folder
    for made in (folder, data):
        shutil.rmtree(made)


def test_a_stage_runs_by_one_line_and_leaves_its_log_beside(desk: Desk, folder: Path) -> None:
    wrapper = desk.cluster.shared / "clone" / "slurm_wrappers" / f"{STAGE}.sbatch"
    with timed(f"{STAGE} by sbatch, by hand"):
        desk.cluster.run("sbatch", "--wait", wrapper, "exp", cwd=folder, timeout=600)
    made = manifest(folder / "exp", STAGE)
    assert made["writer"]["image_digest"] == desk.images.pins[STAGE].partition("@")[2]
    (log,) = folder.glob(f"{STAGE}.*.log")
    assert "ended with exit code 0" in log.read_text()
    assert log.owner() == desk.cluster.user
    verified = desk.cluster.run("sbatch", "--wait", "--mem=2G", wrapper, "exp", "verify", cwd=folder, timeout=600)
    assert verified.returncode == 0


def test_a_job_that_cannot_run_says_why_and_ends_with_the_code(desk: Desk, folder: Path) -> None:
    wrapper = desk.cluster.shared / "clone" / "slurm_wrappers" / f"{STAGE}.sbatch"
    options = ("--wait", "--output=log")
    done = desk.cluster.run("sbatch", *options, wrapper, "nowhere", cwd=folder, check=False, timeout=600)
    assert done.returncode == 66
    assert "no experiment file" in (folder / "log").read_text()
    done = desk.cluster.run("sbatch", *options, wrapper, "--help", cwd=folder, timeout=600)
    assert "usage: sbatch [RESOURCES] slurm_wrappers/prepare.sbatch EXPERIMENT" in (folder / "log").read_text()


def test_a_job_over_the_time_limit_of_its_partition_is_refused(desk: Desk, folder: Path) -> None:
    more = ("--set", "cluster.prepare.time=9-00:00:00", "--to", STAGE)
    refused = desk.cluster.run(desk.lsdflow, "submit", folder / "exp", *more, check=False)
    assert refused.returncode == 78, refused.stderr
    assert "prepare: time 9-00:00:00, but partition cpu allows 1-00:00:00" in refused.stderr
    assert not (folder / "exp" / "runs" / "submit").exists()
