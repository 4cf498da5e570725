"""A small real experiment whose stages are hit by faults, and the history of what was injected and what came of it.

64 blocks (4 x 4 x 4; in CI 32) of affinities made from cells. A fault hits one stage; then the same command runs again,
and what stands must be what the undisturbed serial run left: the manifest's identity (key and the checksum of every
block) and `verify`, which reads everything back.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lsdflow_contract.arrays import AFFS, LABELS, RAW, ArraySpec
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import affinities_of, voronoi_labels
from lsdflow_runtime.volumes import OutputArray

RELEASE = os.environ.get("LSDFLOW_FAULTS", "ci") == "release"
SEED = int(os.environ.get("LSDFLOW_FAULT_SEED", "20261121"))
STAGES = ("watershed", "agglomerate", "segment")
SHAPE_VOX, BLOCKS = ((32, 32, 32), 64) if RELEASE else ((16, 32, 32), 32)
TABLES = """
[experiment]
name = "faults"
[watershed]
block_shape = "8 vox"
context = "4 vox"
min_seed_distance_vox = 4
[segment]
threshold = 0.14
"""


def count(ci: int, release: int) -> int:
    """How often a fault is injected: in CI, or for a release (LSDFLOW_FAULTS=release)."""
    return release if RELEASE else ci


def seeds(row: str, ci: int, release: int) -> list[int]:
    """The seeds of a row of the fault matrix: the same for the same LSDFLOW_FAULT_SEED."""
    generator = random.Random(f"{SEED} {row}")
    return [generator.randrange(10**6) for _ in range(count(ci, release))]


class Server:
    """The fork server: starts stages in children."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "stages.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        program = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def start(self, stage: str, folder: Path, *settings: str, verb: str = "run", point: str = "", nth: int = 0) -> int:
        """Start a stage's command in a child; its process number."""
        overrides = [part for setting in settings for part in ("--set", setting)]
        arguments = [verb, "--experiment", str(folder / "experiment.toml"), *overrides]
        told = {"do": "start", "stage": stage, "arguments": arguments, "log": str(self.log), "point": point, "nth": nth}
        return int(self._ask(told)["pid"])

    def wait(self, pid: int) -> int:
        """Exit code of a child, or -signal."""
        return int(self._ask({"do": "wait", "pid": pid})["status"])

    def run(self, stage: str, folder: Path, *settings: str, verb: str = "run", point: str = "", nth: int = 0) -> int:
        """Start a stage's command, and wait for its end."""
        return self.wait(self.start(stage, folder, *settings, verb=verb, point=point, nth=nth))

    def told(self) -> str:
        """All that the stages have written so far."""
        return self.log.read_text()

    def close(self) -> None:
        """End the server."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)

    def _ask(self, told: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


@dataclass(frozen=True)
class World:
    """The server, the experiment before each stage, and what the undisturbed serial run left."""

    server: Server
    root: Path
    identities: Mapping[str, str]
    history: Path

    def before(self, stage: str, name: str) -> Path:
        """A copy of the experiment in which everything before `stage` is done."""
        folder = self.root / name
        shutil.copytree(self.root / f"before-{stage}", folder)
        return folder

    def finished(self, stage: str, name: str) -> Path:
        """A copy in which `stage` is done too."""
        folder = self.root / name
        following = (*STAGES, "end")[STAGES.index(stage) + 1]
        shutil.copytree(self.root / f"before-{following}", folder)
        return folder

    def is_whole(self, stage: str, folder: Path) -> bool:
        """True if the stage's result is that of the undisturbed run, and reading everything back agrees."""
        same = identity(folder, stage) == self.identities[stage]
        return same and self.server.run(stage, folder, "compute.runner=serial", verb="verify") == 0

    def note(self, row: str, **facts: Any) -> None:
        """Add a fault and its outcome to the history."""
        with self.history.open("a") as file:
            file.write(json.dumps({"row": row, **facts}) + "\n")


def make_world(root: Path, history: Path) -> World:
    """Make the experiment and run it undisturbed, keeping a copy before each stage."""
    server = Server(root)
    folder = root / "made"
    write_experiment(folder)
    found = {}
    for stage in STAGES:
        shutil.copytree(folder, root / f"before-{stage}")
        code = server.run(stage, folder, "compute.runner=serial")
        assert code == 0, f"{stage} ended with {code}: {server.log.read_text()[-2000:]}"
        found[stage] = identity(folder, stage)
    shutil.copytree(folder, root / "before-end")
    return World(server, root, found, history)


def write_experiment(folder: Path) -> None:
    """An experiment in which prepare and predict have finished."""
    folder.mkdir()
    (folder / "experiment.toml").write_text(TABLES)
    experiment = load_experiment(folder)
    grid = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), SHAPE_VOX)
    cells = voronoi_labels(SHAPE_VOX, 30, 1)
    target, predictions = experiment.layout.target_volume, experiment.layout.predictions("acrlsd", 1)
    _write(target, RAW, grid, np.zeros(SHAPE_VOX, np.uint8))
    _write(target, LABELS, grid, cells)
    affs = _write(predictions, AFFS, grid, noisy(affinities_of(cells)))
    for stage, outputs in (("prepare", {}), ("predict", {"affs": str(affs.relative_to(folder))})):
        manifest = Manifest(
            writer=Writer.of(stage), key=stage, config={}, inputs={}, outputs=outputs, identity=f"{stage} of the test"
        )
        manifest.write(experiment.layout)


def noisy(affs: np.ndarray) -> np.ndarray:
    """Affinities as a network has them: no two alike."""
    generator = np.random.default_rng(0)
    return np.clip(affs * 0.7 + generator.normal(30, 15, affs.shape), 0, 255).astype(np.uint8)


def _write(path: Path, spec: ArraySpec, grid: Geometry, values: np.ndarray) -> Path:
    output = OutputArray(path, spec, grid, grid.box, grid.shape_vox)
    output.create({"key": "made by the test"})
    output.open().write(grid.box, values)
    return output.folder


def identity(folder: Path, stage: str) -> str:
    """The manifest's identity; empty if the stage has not finished."""
    layout = ExperimentLayout(folder)
    return read_manifest(layout, stage).identity if layout.manifest(stage).exists() else ""


def marks(folder: Path, stage: str) -> dict[str, float]:
    """Block -> when it was done."""
    paths = (folder / "store" / "blocks" / stage).glob("*/done/*.json")
    return {path.stem: float(json.loads(path.read_text())["finished"]) for path in paths}


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file but those of runs/: size and time of writing."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] != "runs")
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


def workers_of(pid: int) -> list[psutil.Process]:
    """Processes below a coordinator."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(pid: int) -> bool:
    """True while a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
