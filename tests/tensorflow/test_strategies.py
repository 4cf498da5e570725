"""Two devices of a process, and two processes, make the steps of one process with both patches: mean gradient."""

from __future__ import annotations

import importlib
import multiprocessing
import queue
import socket
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")

import torch  # noqa: E402

from lsdflow_network.unet import UNet as TorchUNet  # noqa: E402
from lsdflow_tensorflow.cluster import Cluster  # noqa: E402
from lsdflow_tensorflow.engine import make_strategy  # noqa: E402
from lsdflow_training.step import forward_losses  # noqa: E402

STEPS = 2
RATE = 1e-3


def step_of_the_mean(made, patches):
    """One step of torch with the mean of the patches' gradients; the mean losses."""
    results = [forward_losses(made.network, [patch], "float32")[0] for patch in patches]
    made.optimizer.zero_grad()
    (sum(result.loss for result in results) / len(results)).backward()
    made.optimizer.step()
    return {name: sum(result.losses[name] for result in results) / len(results) for name in results[0].losses}


def weights_of(engine, settings):
    given = TorchUNet(settings.unet, settings.outputs)
    engine.export(given, torch.optim.Adam(given.parameters()))
    return given.state_dict()


def assert_same_training(found, made) -> None:
    """`found` (losses of the steps, weights) are those of torch in one process."""
    losses, weights = found
    for number in range(STEPS):
        assert losses[number] == pytest.approx(step_of_the_mean(made, made.patches[2 * number :][:2]), rel=1e-5)
    for name, value in made.trained.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


@pytest.mark.proves("DDP-21")
def test_two_devices_step_with_the_mean_gradient(torch_side) -> None:
    made = torch_side("mtlsd", patches=2 * STEPS)
    engine = made.engine(make_strategy(Cluster(), ["CPU:0", "CPU:1"]))
    assert engine.replicas == 2
    steps = [engine.step(made.patches[2 * n :][:2], n + 1, RATE) for n in range(STEPS)]
    assert_same_training(([step.losses for step in steps], weights_of(engine, made.settings)), made)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for made in sockets:
        made.bind(("127.0.0.1", 0))
    ports = [made.getsockname()[1] for made in sockets]
    for made in sockets:
        made.close()
    return ports


def answers_of(processes, answers):
    """One answer of each process, or an assertion as soon as one has died without."""
    found = {}
    while len(found) < len(processes):
        try:
            rank, *rest = answers.get(timeout=1)
            found[rank] = rest
        except queue.Empty:
            assert all(process.exitcode in (None, 0) for process in processes)
    return found


def test_two_processes_step_with_the_mean_gradient_and_stop_together(torch_side, monkeypatch) -> None:
    """The chief's minutes count, and the other one's wish to stop."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    worker = importlib.import_module("cluster_worker")
    made = torch_side("affinities", patches=2 * STEPS)
    parts = {name: getattr(made, name) for name in ("settings", "trained", "optimizer", "patches")}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow", "lsdflow_tensorflow.engine"])
    answers = context.Queue()
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    processes = [context.Process(target=worker.work, args=(r, addresses, parts, RATE, answers)) for r in range(2)]
    for process in processes:
        process.start()
    found = answers_of(processes, answers)
    for process in processes:
        process.join()
    (steps, weights), (steps_1, weights_1) = found[0], found[1]
    assert steps == steps_1
    assert [(minutes, stop) for _, minutes, stop in steps] == [(1.0, False), (2.0, True)]
    assert all((weights[name] == weights_1[name]).all() for name in weights)
    found_weights = {name: torch.from_numpy(value) for name, value in weights.items()}
    assert_same_training(([losses for losses, _, _ in steps], found_weights), made)
