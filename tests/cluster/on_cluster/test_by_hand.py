"""One stage by `sbatch slurm_wrappers/<stage>.sbatch EXPERIMENT`, as an ordinary user in an empty folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import REPOSITORY
from desk import Desk, timed
from experiments import manifest, tables, write_experiment, write_volumes

STAGE = "prepare"


@pytest.fixture
def folder(desk: Desk) -> Iterator[Path]:
    """A folder of the user with nothing in it but an experiment, whose volumes are elsewhere."""
    folder, data = desk.cluster.shared / "by-hand", desk.cluster.shared / "data-by-hand"
    write_volumes(data)
    volumes = {"training": [{"name": "train", "raw": str(data / "input" / "train.hdf")}]}
    target = {name: str(data / "input" / "volume.hdf") for name in ("raw", "truth")}
    more = {
        "experiment": {"mode": "mtlsd"},
        "prepare": {**volumes, "target": target},
        "store": {"engine": "files"},
        "compute": {"workers": 1},
    }
    write_experiment(folder / "exp", tables(desk.cluster, "by-hand", more))
    (folder / "exp" / "images.env").write_text(desk.images.env())
    for made in (folder, data):
        desk.give(made)
    yield folder
    for made in (folder, data):
        shutil.rmtree(made)


@pytest.mark.proves("NEW-06")
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


def test_a_training_a_prediction_and_a_sweep_run_by_one_line_each(desk: Desk, folder: Path) -> None:
    wrappers = desk.cluster.shared / "clone" / "slurm_wrappers"
    for stage in (STAGE, "train-acrlsd", "predict"):
        with timed(f"{stage} by sbatch, by hand"):
            words = ("--wait", "--cpus-per-task=1", "--mem=3G", wrappers / f"{stage}.sbatch", "exp")
            desk.cluster.run("sbatch", *words, cwd=folder, timeout=900)
        assert manifest(folder / "exp", stage)["writer"]["image_digest"] == desk.images.pins[stage].partition("@")[2]
    (folder / "grid.toml").write_text('base = "exp"\nmetric = "voi"\n[axes]\n"segment.threshold" = [0.4, 0.5]\n')
    # It asks the stages what they say to each run: by the commands of a clone that is set up.
    subprocess.run([REPOSITORY / "bin" / "lsdflow", "sweep", "prepare", "grid.toml"], cwd=folder, check=True)
    desk.give(folder)
    with timed("a sweep of two runs by sbatch, by hand"):
        sbatch = ("sbatch", "--wait", "--array=1-2", "--cpus-per-task=1", "--mem=3G", wrappers / "sweep.sbatch")
        done = desk.cluster.run(*sbatch, desk.lsdflow, "grid", cwd=folder, check=False, timeout=900)
    logs = "\n".join(log.read_text() for log in folder.glob("lsdflow-sweep.*.log"))
    assert done.returncode == 0, logs
    runs = sorted(path for path in (folder / "grid" / "runs").iterdir() if path.is_dir())
    assert len(runs) == 2
    for run in runs:
        made = manifest(run, "evaluate")
        assert made["writer"]["image_digest"] == desk.images.pins["evaluate"].partition("@")[2]
        assert made["facts"]["voi"] > 0


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


def test_a_partition_that_the_cluster_does_not_have_is_refused_before_anything_is_submitted(
    desk: Desk, folder: Path
) -> None:
    more = ("--set", "cluster.partition_cpu=a100", "--to", STAGE)
    refused = desk.cluster.run(desk.lsdflow, "submit", folder / "exp", *more, check=False)
    assert refused.returncode == 78, refused.stderr
    assert "the cluster has no partition a100" in refused.stderr
    assert not (folder / "exp" / "runs" / "submit").exists()
