"""The command of a stage, started on two workers of a TF_CONFIG, makes one training: that of torch with two patches."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")

import torch  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations  # noqa: E402
from lsdflow_contract.layout import ExperimentLayout  # noqa: E402
from lsdflow_contract.manifest import read_manifest  # noqa: E402
from lsdflow_network.bundle import load_bundle  # noqa: E402
from lsdflow_train_acrlsd.cli import app  # noqa: E402
from lsdflow_training.testing import micro_experiment  # noqa: E402

STAGE = "train-acrlsd"
OPTIONS = {"elastic_probability": 0.0, "schedule": "constant", "learning_rate": 1e-3, "max_iteration": 3, "threads": 1}


def free_addresses(count: int) -> list[str]:
    """Addresses of ports on loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    for opened in sockets:
        opened.close()
    return found


def run_workers(toml: Path, count: int) -> list[tuple[int, str]]:
    """`train-acrlsd run` once for each worker, at the same time; exit codes and outputs."""
    workers = free_addresses(count)
    command = [str(Path(sys.executable).parent / STAGE), "run", "--experiment", str(toml)]
    processes = []
    for index in range(count):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(cluster)}
        started = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(started)
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, outputs, strict=True)]


def losses(layout: ExperimentLayout) -> dict[str, float]:
    with (layout.train_dir(STAGE) / "loss.csv").open() as file:
        return {row["iteration"]: float(row["loss"]) for row in csv.DictReader(file) if row["loss"]}


def weights(layout: ExperimentLayout) -> dict[str, torch.Tensor]:
    return load_bundle(bundle_folder(layout.checkpoints(STAGE), 3))[1]


@pytest.mark.proves("DDP-21")
def test_two_workers_make_the_training_that_torch_makes_with_two_patches_a_step(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    micro_experiment(alone, "affinities", {**OPTIONS, "accumulate": 2})
    toml = micro_experiment(shared, "affinities", {**OPTIONS, "backend": "tensorflow"})
    ended = run_workers(toml, 2)
    assert [code for code, _ in ended] == [0, 0], ended
    done = CliRunner().invoke(app, ["run", "--experiment", str(alone)])
    assert done.exit_code == 0, done.output
    one, two = ExperimentLayout(alone), ExperimentLayout(shared)
    assert bundle_iterations(two.checkpoints(STAGE)) == bundle_iterations(one.checkpoints(STAGE)) == [2, 3]
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(two)[name], value, rtol=0, atol=1e-4)
    assert read_manifest(two, STAGE).facts["iteration"] == 3
    assert "MultiWorkerMirroredStrategy" in ended[0][1]
