"""One training on two nodes: srun starts a container on each; both learn together what one process learns alone."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from cluster import wait_until
from desk import Desk, timed
from experiments import NETWORK, copy_prepared, manifest, run_locally
from safetensors.numpy import load_file
from submission import Submission

from lsdflow_contract.checkpoint import WEIGHTS, bundle_folder, bundle_iterations
from lsdflow_contract.layout import ExperimentLayout

STAGE = "train-lsd"
ITERATIONS = 60
TRAINED = {**NETWORK, "max_iteration": ITERATIONS, "checkpoint_every": 10, "snapshot_every": ITERATIONS}


def _checkpoints(folder: Path) -> Path:
    return ExperimentLayout(folder).checkpoints(STAGE)


def _losses(folder: Path) -> dict[int, float]:
    with (ExperimentLayout(folder).train_dir(STAGE) / "loss.csv").open() as file:
        return {int(row["iteration"]): float(row["loss"]) for row in csv.DictReader(file) if row["loss"]}


def _weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(bundle_folder(_checkpoints(folder), ITERATIONS) / WEIGHTS)


def _on_two_nodes(desk: Desk, whole: Submission, name: str) -> tuple[Path, Submission]:
    folder = desk.write(name, cluster={STAGE: {"nodes": 2}}, **{STAGE: TRAINED})
    copy_prepared(whole.experiment, folder)
    return folder, desk.submit(folder, "--from", STAGE, "--to", STAGE)


@pytest.fixture(scope="module")
def trained(desk: Desk, whole: Submission) -> Path:
    """Trained on two nodes, by a process on each, without a disturbance."""
    with timed(f"{ITERATIONS} iterations of train-lsd on two nodes"):
        folder, submission = _on_two_nodes(desk, whole, "two-nodes")
        submission.assert_completed(seconds=1500)
    nodes = desk.cluster.run("scontrol", "show", "hostnames", submission.job(STAGE, "run").node).stdout.split()
    assert len(nodes) == 2
    output = submission.log(STAGE, "run")
    assert all(f"on {node}, restart 0" in output for node in nodes), output
    return folder


@pytest.mark.proves("DDP-02", "DDP-18")
def test_two_nodes_learn_what_one_process_learns_with_twice_the_patches(
    desk: Desk, whole: Submission, trained: Path
) -> None:
    alone = desk.write("one-process", **{STAGE: {**TRAINED, "accumulate": 2}})
    copy_prepared(whole.experiment, alone)
    run_locally(alone, [STAGE])
    assert manifest(trained, STAGE)["facts"]["patches_per_step"] == 2
    expected, mine = _losses(trained), _losses(alone)
    assert list(expected) == list(mine) == list(range(1, ITERATIONS + 1))
    # Rounding grows with every step that the optimizer takes: the first ones show whether the sums are the same.
    for number in range(1, 11):
        assert expected[number] == pytest.approx(mine[number], rel=1e-4), number
    assert np.mean([expected[n] for n in range(ITERATIONS - 20, ITERATIONS)]) == pytest.approx(
        np.mean([mine[n] for n in range(ITERATIONS - 20, ITERATIONS)]), rel=0.02
    )


def test_a_training_requeued_on_two_nodes_ends_with_the_same_bits(desk: Desk, whole: Submission, trained: Path) -> None:
    with timed("requeue of a training on two nodes"):
        folder, submission = _on_two_nodes(desk, whole, "two-nodes-again")
        wait_until("a first checkpoint", lambda: bundle_iterations(_checkpoints(folder)), 200)
        desk.cluster.run("scontrol", "requeue", submission.number(STAGE, "run"))
        submission.assert_completed(seconds=1500)
    assert submission.job(STAGE, "run").restarts == 1
    assert _losses(folder) == _losses(trained)
    own, expected = _weights(folder), _weights(trained)
    assert own.keys() == expected.keys()
    assert all(np.array_equal(own[name], expected[name]) for name in own)
