"""prepare with workers is killed at different moments; the same command then gives the bits of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import voronoi_labels
from lsdflow_prepare.stage import Prepare
from lsdflow_runtime.store.stores import open_store

SHAPE = (16 * 64, 96, 96)
BLOCKS = 32
COMMAND = "from lsdflow_prepare.cli import main; main()"
Make = Callable[..., Experiment]


def started(loaded: Experiment) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", COMMAND, "run", "-e", str(loaded.path)], stderr=subprocess.DEVNULL)


def done_blocks(loaded: Experiment) -> dict[tuple[str, int], float]:
    """When each block was finished, by pass and number."""
    store = open_store(loaded)
    marks = {key: store.blocks("prepare", key) for key in store.keys("prepare")}
    return {(key, number): r["finished"] for key in marks for number, r in marks[key].records().items()}


def wait_for_blocks(loaded: Experiment, process: subprocess.Popen[bytes], blocks: int) -> None:
    while len(done_blocks(loaded)) < blocks:
        assert process.poll() is None, "it ended before the kill"
        time.sleep(0.002)


@pytest.fixture
def loaded(put: Callable[..., Path], experiment: Make) -> Experiment:
    put("volumes/raw", np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8))
    put("volumes/labels/neuron_ids", voronoi_labels(SHAPE, 20).astype(np.uint64))
    return experiment()


def test_killed_coordinators_and_workers_cost_no_block(loaded: Experiment, tmp_path: Path) -> None:
    Prepare().run(load_experiment(loaded.path, ["compute.runner=serial"]))
    wanted = read_manifest(loaded.layout, "prepare")
    (tmp_path / "exp").rename(tmp_path / "undisturbed")
    (tmp_path / "exp").mkdir()
    (tmp_path / "undisturbed" / "experiment.toml").rename(loaded.path)
    before: dict[str, int] = {}
    for blocks in (2, 20):
        with started(loaded) as coordinator:
            wait_for_blocks(loaded, coordinator, blocks)
            workers = psutil.Process(coordinator.pid).children(recursive=True)
            coordinator.kill()
        assert coordinator.returncode == -signal.SIGKILL
        assert not psutil.wait_procs(workers, timeout=30)[1], "workers end with their coordinator"
        assert not loaded.layout.manifest("prepare").exists()
        assert before.items() <= done_blocks(loaded).items(), "finished blocks were processed again"
        before = done_blocks(loaded)
    with started(loaded) as coordinator:
        wait_for_blocks(loaded, coordinator, len(before) + 1)
        for worker in psutil.Process(coordinator.pid).children(recursive=True)[-1:]:
            worker.kill()
    assert coordinator.returncode == 0
    made = read_manifest(loaded.layout, "prepare")
    assert (made.key, made.identity) == (wanted.key, wanted.identity)
    assert made.facts["volumes"] == wanted.facts["volumes"]
    assert Prepare().verify(loaded)["blocks_read_back"] == {"training/a": BLOCKS}
