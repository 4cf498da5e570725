"""The folders of a sweep: which folder each stage of a run is computed in, and sweep.json, the plan on disk.

Stages that no axis changes are computed once and shared. Each folder is an experiment; for the axes
agglomerate.merge_functions and segment.threshold:

base             prepare, train-*, predict, watershed
shared/<m>/      agglomerate                                 links to the base's arrays, graph and manifests
runs/<m>_<t>/    segment, evaluate                           links to those of shared/<m>
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import write_if_changed
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.manifest import require_contract
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_launch.sweep.experiments import experiment_text_of
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.grid import Axis, Run, unique_names

RUNS, SHARED = "runs/", "shared/"
# Tables that belong to no stage: the first stage whose result or run time they can change.
_FIRST_STAGE = {"experiment": "train-lsd", "compute": "train-lsd", "cluster": "train-lsd", "store": "predict"}
# Each run has its own database, so rows of watershed and later stages cannot be linked.
_FIRST_IN_DATABASE = "watershed"
PLAN_NAME = "sweep.json"


class PlannedNode(StrictModel):
    """An experiment folder of the sweep, and the stages that are computed in it."""

    folder: str = Field(description="relative to the sweep's folder")
    stages: tuple[str, ...]
    mode: str = Field("", description="mode of the run; empty in what sweeps of before have written")

    @property
    def is_base(self) -> bool:
        """True for the base experiment, which does not belong to the sweep."""
        return not self.folder.startswith((SHARED, RUNS))


class PlannedRun(StrictModel):
    """A run: its labels in the grid, and its folders, the base first and its own last."""

    number: int
    name: str
    at: dict[str, str]
    nodes: tuple[PlannedNode, ...]

    def links(self) -> Iterator[tuple[PlannedNode, PlannedNode, tuple[str, ...]]]:
        """Yield each folder but the last, the next one, and the stages whose results are linked from it to the next."""
        for number, (node, after) in enumerate(itertools.pairwise(self.nodes), 1):
            yield node, after, tuple(stage for earlier in self.nodes[:number] for stage in earlier.stages)


def planned_runs(sweep: Sweep, root: Path) -> tuple[PlannedRun, ...]:
    """Return all runs of a sweep whose folder is `root`."""
    levels = _Levels(sweep, root)
    return tuple(
        PlannedRun(number=run.number, name=run.name, at=dict(run.at), nodes=tuple(levels.nodes(run)))
        for run in sweep.runs
    )


def settings_at(sweep: Sweep, run: Run, node: PlannedNode) -> dict[str, Any]:
    """Return the keys of a run that matter in a node: those of axes that begin there or before."""
    counted = {
        key for axis in sweep.axes if _first_index(axis, sweep) <= STAGES.index(node.stages[0]) for key in axis.keys
    }
    return {key: value for key, value in run.settings.items() if key in counted}


def open_stages(experiment: Experiment, node: PlannedNode) -> tuple[str, ...]:
    """Return the stages of a node, whose experiment is given, that have still to run.

    In the base, a stage before a finished one is not needed: its results were imported.
    """
    stages = [stage for stage in node.stages if stage in experiment.stages]
    finished = [experiment.layout.manifest(stage).exists() for stage in stages]
    if node.is_base:
        return tuple(stages[len(stages) - finished[::-1].index(True) :] if any(finished) else stages)
    return tuple(stages[finished.index(False) :] if not all(finished) else ())


class _Levels:
    """The levels of the chain; a level ends where an axis begins."""

    def __init__(self, sweep: Sweep, root: Path) -> None:
        self._mode_of_base = sweep.base.common.mode
        self._base = os.path.relpath(sweep.base.path.parent, root.resolve())
        first = {axis.name: _first_index(axis, sweep) for axis in sweep.axes}
        self._cuts = sorted(set(first.values()))
        self._axes = {cut: [axis for axis in sweep.axes if first[axis.name] <= cut] for cut in self._cuts}
        self._names = {cut: _names(axes) for cut, axes in self._axes.items()}

    def nodes(self, run: Run) -> Iterator[PlannedNode]:
        """Yield the base (unless an axis begins at the first stage), the shared folders, and the run."""
        mode = str(run.settings.get("experiment.mode", self._mode_of_base))
        if self._cuts[0] > 0:
            yield PlannedNode(folder=self._base, stages=STAGES[: self._cuts[0]], mode=mode)
        for cut, after in itertools.pairwise(self._cuts):
            name = self._names[cut][tuple(run.at[axis.name] for axis in self._axes[cut])]
            yield PlannedNode(folder=f"{SHARED}{name}", stages=STAGES[cut:after], mode=mode)
        yield PlannedNode(folder=f"{RUNS}{run.name}", stages=STAGES[self._cuts[-1] :], mode=mode)


def _names(axes: list[Axis]) -> dict[tuple[str, ...], str]:
    combinations = list(itertools.product(*(axis.points for axis in axes)))
    names = unique_names(axes, combinations)
    return {tuple(p.label for p in points): name for points, name in zip(combinations, names, strict=True)}


def _first_index(axis: Axis, sweep: Sweep) -> int:
    """Return the index of the first stage that an axis can change; a stage depends on its table and earlier stages."""
    tables = [key.partition(".")[0] for key in axis.keys]
    first = min(STAGES.index(_FIRST_STAGE.get(table, table)) for table in tables)
    return min(first, STAGES.index(_FIRST_IN_DATABASE)) if _uses_mongo(sweep) else first


def _uses_mongo(sweep: Sweep) -> bool:
    chosen = [point.settings.get("store.engine") for axis in sweep.axes for point in axis.points]
    return sweep.base.store.engine == "mongo" or "mongo" in chosen


class SweepPlan(StrictModel):
    """The content of sweep.json, written by `sweep prepare`."""

    contract: str = CONTRACT_VERSION
    base_file: str = Field(description="relative to the sweep's folder")
    base_hash: str = Field(description="sha256 of the base's experiment file")
    axes: dict[str, tuple[str, ...]] = Field(description="labels of each axis")
    split_by: tuple[str, ...]
    means_over: tuple[str, ...]
    metric: str
    runs: tuple[PlannedRun, ...]

    @property
    def grid_hash(self) -> str:
        """The hash of axes and runs; it does not depend on the location of the base."""
        return hash_of([self.axes, [(run.name, run.at) for run in self.runs]])


@dataclass(frozen=True)
class SweepFolder:
    """A prepared sweep."""

    root: Path
    plan: SweepPlan

    def folder(self, node: PlannedNode) -> Path:
        """Return the folder of a node's experiment."""
        return Path(os.path.normpath(self.root / node.folder))

    @property
    def base_folder(self) -> Path:
        """The folder of the base experiment."""
        return Path(os.path.normpath(self.root / self.plan.base_file)).parent

    def run_folder(self, run: PlannedRun) -> Path:
        """Return the folder of a run's own experiment."""
        return self.folder(run.nodes[-1])

    def require_base(self) -> None:
        """Raise OutputConflict (73) if the base's experiment file changed after `sweep prepare`.

        Raises MissingInput (66) if it does not exist.
        """
        path = Path(os.path.normpath(self.root / self.plan.base_file))
        if not path.is_file():
            raise MissingInput("the base experiment is not there", where=path)
        if hash_of_file(path) != self.plan.base_hash:
            raise OutputConflict(
                "the base experiment was changed after the sweep was prepared",
                where=path,
                fix="put it back, or prepare the sweep in another folder",
            )


def planned(sweep: Sweep, root: Path) -> SweepPlan:
    """Return the plan of a sweep whose folder is `root`; writes nothing."""
    return SweepPlan(
        base_file=os.path.relpath(sweep.base.path, root.resolve()),
        base_hash=hash_of_file(sweep.base.path),
        axes={axis.name: tuple(point.label for point in axis.points) for axis in sweep.axes},
        split_by=sweep.split_by,
        means_over=sweep.means_over,
        metric=sweep.metric,
        runs=planned_runs(sweep, root),
    )


def write_folders(sweep: Sweep, root: Path) -> SweepFolder:
    """Write sweep.json and the experiment file of every run and shared folder; a larger grid keeps the existing files.

    Raises OutputConflict (73) if the file of a run would change, because of another sweep or another base.
    """
    folder = SweepFolder(root.resolve(), planned(sweep, root))
    texts: dict[Path, str] = {}
    for run, planned_run in zip(sweep.runs, folder.plan.runs, strict=True):
        for node in planned_run.nodes:
            path = folder.folder(node) / "experiment.toml"
            if path != sweep.base.path and path not in texts:
                settings = settings_at(sweep, run, node)
                texts[path] = experiment_text_of(sweep.base, settings, path.parent.name, path.parent)
    for path, text in texts.items():
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            fix = "prepare into another folder; an axis may grow at any time, its keys and the base may not change"
            raise OutputConflict("another sweep is in this folder", where=path, fix=fix)
    images = sweep.base.layout.images_env
    for path, text in texts.items():
        write_if_changed(path, text.encode())
        if images.is_file():
            write_if_changed(path.with_name(images.name), images.read_bytes())
    write_sealed(folder.root / PLAN_NAME, folder.plan.model_dump())
    return folder


def open_sweep(root: Path) -> SweepFolder:
    """Open a prepared sweep. Raises MissingInput (66) if there is none, BadData (65) or ContractMismatch (76)."""
    path = root / PLAN_NAME
    if not path.is_file():
        raise MissingInput("no prepared sweep", where=root, fix=f"lsdflow sweep prepare SWEEP.toml {root}")
    fix = "prepare the sweep again"
    raw = read_sealed(path, fix)
    require_contract(str(raw.get("contract", "")), path)
    try:
        return SweepFolder(root.resolve(), SweepPlan.model_validate(raw))
    except ValidationError as error:
        raise BadData("damaged plan of a sweep", where=path, found=error, fix=fix) from error
