"""A small real experiment whose stages are hit by faults, and the history of what was injected and what came of it.

64 blocks (4 x 4 x 4; in CI 32) of affinities made from cells. A fault hits one stage; then the same command runs again,
and what is on disk must be what the undisturbed serial run left: the manifest's identity (key and the checksum of every
block) and `verify`, which reads everything back.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from databases import Databases, Rows
from predicting import write_predictable

from lsdflow_contract.arrays import AFFS, LABELS, RAW, ArraySpec
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import affinities_of, voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.done_marks import DoneMarks

RELEASE = os.environ.get("LSDFLOW_FAULTS", "ci") == "release"
SEED = int(os.environ.get("LSDFLOW_FAULT_SEED", "20261121"))
STORES = ("files", "mongo")
SERIAL, DAISY = "compute.runner=serial", ("compute.runner=daisy", "compute.workers=2")
# A command that has not ended after this time hangs.
HANG_S = 600.0
Harm = Mapping[str, Any]
# From cells to a segmentation. predict is hit in an experiment of its own: untrained networks see no cells.
STAGES = ("watershed", "agglomerate", "segment", "evaluate")
PREDICT = "predict"
SHAPE_VOX, BLOCKS = ((32, 32, 32), 64) if RELEASE else ((16, 32, 32), 32)
GRID = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), SHAPE_VOX)
TABLES = """
[experiment]
name = "faults"
[compute]
device = "cpu"
threads_per_worker = 1
[predict]
block_shape = "8 vox"
[watershed]
id_mode = "blocks"
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


class Hang(AssertionError):
    """A command did not end."""


class Server:
    """The fork server: starts stages in children."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "stages.log"
        self.running: set[int] = set()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LSDFLOW_HOST": "127.0.0.1"}
        program = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run_here(self, stage: str, folder: Path, *settings: str) -> int:
        """Run a stage in the server's own process: its children need not load and compile anything again."""
        return int(self._ask({"do": "here", **self._command(stage, folder, "run", settings)})["status"])

    def start(
        self, stage: str, folder: Path, *settings: str, verb: str = "run", harm: Harm | None = None, **environment: str
    ) -> int:
        """Start a stage's command in a child that does `harm` (injections.py) to itself; its process number."""
        command = self._command(stage, folder, verb, settings)
        pid = int(self._ask({"do": "start", **command, "harm": harm or {}, "environment": environment})["pid"])
        self.running.add(pid)
        return pid

    def wait(self, pid: int, seconds: float = HANG_S) -> int:
        """Exit code of a child, or -signal. Raises Hang."""
        status = self._ask({"do": "wait", "pid": pid, "seconds": seconds})["status"]
        self.running.discard(pid)
        if status is None:
            raise Hang(f"process {pid} did not end within {seconds:.0f} s: {self.output()[-3000:]}")
        return int(status)

    def run(self, stage: str, folder: Path, *settings: str, verb: str = "run", harm: Harm | None = None) -> int:
        """Start a stage's command, and wait for its end."""
        return self.wait(self.start(stage, folder, *settings, verb=verb, harm=harm))

    def output(self) -> str:
        """All that the stages have written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end_all(self) -> None:
        """End what a failed test has left behind."""
        for pid in list(self.running):
            for process in [*workers_of(pid), psutil.Process(pid)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.wait(pid)

    def close(self) -> None:
        """End the server."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)

    def _command(self, stage: str, folder: Path, verb: str, settings: Iterable[str]) -> dict[str, Any]:
        overrides = [part for setting in settings for part in ("--set", setting)]
        arguments = [verb, "--experiment", str(folder / "experiment.toml"), *overrides]
        return {"stage": stage, "arguments": arguments, "log": str(self.log)}

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


@dataclass
class World:
    """The server, the experiment before each stage with each store, and what the undisturbed serial run left."""

    server: Server
    root: Path
    history: Path
    databases: Databases
    identities: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    noted_at: float = field(default_factory=time.monotonic)

    def before(self, stage: str, name: str, store: str = "files", **store_settings: Any) -> Path:
        """A copy of the experiment in which everything before `stage` is done."""
        folder = self.root / name.replace(" ", "-").replace(".", "_")
        shutil.copytree(self.root / f"{store}-{stage}", folder)
        if store == "mongo":
            self.databases.fill(folder.name, self.rows[stage])
            (folder / "experiment.toml").write_text(TABLES + self.databases.table(folder.name, **store_settings))
        return folder

    def finished(self, stage: str, name: str, store: str = "files") -> Path:
        """A copy in which `stage` is done too."""
        return self.before((*STAGES, "end")[STAGES.index(stage) + 1], name, store)

    def remove(self, folder: Path) -> None:
        """Remove a copy and its database."""
        if has_database(folder):
            self.databases.drop([folder.name])
        shutil.rmtree(folder)

    def marks(self, folder: Path, stage: str) -> dict[str, float]:
        """Block -> when it was done; blocks of a second pass are 1/number."""
        if has_database(folder):
            times = self.databases.marks(folder.name, stage)
        else:
            works = [marks.records() for marks in marks_of(folder, stage)]
            times = [{number: float(r["finished"]) for number, r in work.items()} for work in works if work]
        # A stage of two passes has two blocks of the same number.
        passes = enumerate(sorted(times, key=lambda work: min(work.values())))
        return {f"{n}/{number}" if n else str(number): when for n, work in passes for number, when in work.items()}

    def count_done(self, folder: Path, stage: str) -> int:
        """How many blocks are done."""
        if has_database(folder):
            return sum(len(work) for work in self.databases.marks(folder.name, stage))
        return sum(marks.count_done() for marks in marks_of(folder, stage))

    def is_whole(self, stage: str, folder: Path) -> bool:
        """True if the stage's result is that of the undisturbed run, and reading everything back agrees."""
        same = identity(folder, stage) == self.identities[stage]
        return same and self.server.run(stage, folder, SERIAL, verb="verify") == 0

    def outcome(self, folder: Path, **outcome: Any) -> dict[str, Any]:
        """What came of a fault: what the judge compares, and with which store."""
        return {"store": "mongo" if has_database(folder) else "files", **outcome}

    def note(self, row: str, **facts: Any) -> None:
        """Add a fault and its outcome to the history, with the seconds since the one before."""
        now = time.monotonic()
        seconds, self.noted_at = round(now - self.noted_at, 2), now
        with self.history.open("a") as file:
            file.write(json.dumps({"row": row, **facts, "base_seed": SEED, "seconds": seconds}) + "\n")


def make_world(root: Path, history: Path, databases: Databases) -> World:
    """Make the experiments and run them undisturbed with each store, keeping a copy before each stage."""
    world = World(Server(root), root, history, databases)
    for store in STORES:
        _run_undisturbed(world, root / f"predicted-{store}", store, (PREDICT,), write_predictable_experiment)
        folder = root / f"made-{store}"
        _run_undisturbed(world, folder, store, STAGES, write_experiment)
        _keep(world, folder, store, "end")
    return world


def _run_undisturbed(
    world: World, folder: Path, store: str, stages: Iterable[str], write: Callable[[Path], None]
) -> None:
    write(folder)
    if store == "mongo":
        (folder / "experiment.toml").write_text(TABLES + world.databases.table(folder.name))
    for stage in stages:
        _keep(world, folder, store, stage)
        code = world.server.run_here(stage, folder, SERIAL)
        assert code == 0, f"{stage} ended with {code}: {world.server.output()[-2000:]}"
        found = identity(folder, stage)
        assert world.identities.setdefault(stage, found) == found, "the stores disagree"


def _keep(world: World, folder: Path, store: str, stage: str) -> None:
    shutil.copytree(folder, world.root / f"{store}-{stage}")
    if store == "mongo":
        world.rows[stage] = world.databases.dump(folder.name)


def write_predictable_experiment(folder: Path) -> None:
    """An experiment in which everything before predict has finished."""
    write_predictable(folder, TABLES, GRID)


def write_experiment(folder: Path) -> None:
    """An experiment in which prepare and predict have finished."""
    folder.mkdir()
    (folder / "experiment.toml").write_text(TABLES)
    experiment = load_experiment(folder)
    cells = voronoi_labels(SHAPE_VOX, 30, 1)
    target, predictions = (
        experiment.layout.target_volume,
        experiment.layout.result("predict", "predict") / "predictions.zarr",
    )
    _write(target, RAW, GRID, np.zeros(SHAPE_VOX, np.uint8))
    _write(target, LABELS, GRID, cells)
    affs = _write(predictions, AFFS, GRID, noisy(affinities_of(cells)))
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


def marks_of(folder: Path, stage: str) -> list[DoneMarks]:
    """The done marks of each work of a stage in the files store."""
    return [DoneMarks(work) for work in (folder / "store" / "blocks" / stage).glob("*")]


def has_database(folder: Path) -> bool:
    """True if the store of a copy is MongoDB."""
    return 'engine = "mongo"' in (folder / "experiment.toml").read_text()


def log_of(folder: Path, stage: str) -> str:
    """The logs of all runs of a stage."""
    return "".join(path.read_text() for path in sorted((folder / "runs" / stage).glob("*/log.txt")))


def slow_ms(left: int) -> float:
    """So much longer for each of `left` blocks: what is to happen in their middle does, on a busy machine too."""
    return 3000 / left


def store_of(number: int) -> str:
    """The store of the nth fault of a row: each third has MongoDB."""
    return STORES[number % 3 == 1]


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file except the records of each call: size and time of writing."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] not in ("runs", "metrics"))
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


def wait_for(what: str, true: Callable[[], bool], seconds: float = 600) -> None:
    """Wait until something is true. Raises Hang."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Hang(f"{what}: not within {seconds} s")
        time.sleep(0.01)
