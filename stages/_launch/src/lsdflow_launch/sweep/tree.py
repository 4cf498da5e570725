"""The folder in which each stage of a run is computed: stages that no axis changes are computed once and shared.

base             prepare, train-*, predict, watershed        axes: agglomerate.merge_functions, segment.threshold
shared/<m>/      agglomerate                                 links to the base's arrays, graph and manifests
runs/<m>_<t>/    segment, evaluate                           links to those of shared/<m>
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.model import StrictModel
from lsdflow_launch.chain import of_mode
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.grid import Axis, Run, unique_names

RUNS, SHARED = "runs/", "shared/"
# Tables that belong to no stage: the first stage whose result or run time they can change.
_FIRST_STAGE = {"experiment": "train-lsd", "compute": "train-lsd", "cluster": "train-lsd", "store": "predict"}
# Each run has its own database, so rows of watershed and later stages cannot be linked.
_FIRST_IN_DATABASE = "watershed"


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


def open_stages(mode: str, node: PlannedNode, folder: Path) -> tuple[str, ...]:
    """Return the stages of a node that have still to run in `folder` for a mode.

    In the base, a stage before a finished one is not needed: its results were imported.
    """
    layout = ExperimentLayout(folder)
    stages = of_mode(node.stages, mode)
    finished = [layout.manifest(stage).exists() for stage in stages]
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
