"""The folder of a sweep: sweep.json (the plan), runs/<name>/ and shared/<name>/ (one experiment each)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.files import write_if_changed
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.manifest import require_contract
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.text import experiment_text_of
from lsdflow_launch.sweep.tree import PlannedNode, PlannedRun, planned_runs, settings_at

PLAN_NAME, RESULT_NAME = "sweep.json", "result.json"


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

    def result_path(self, run: PlannedRun) -> Path:
        """Return the path of the result of a run."""
        return self.run_folder(run) / RESULT_NAME

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
    for run, made in zip(sweep.runs, folder.plan.runs, strict=True):
        for node in made.nodes:
            path = folder.folder(node) / "experiment.toml"
            if path != sweep.base.path and path not in texts:
                settings = settings_at(sweep, run, node)
                texts[path] = experiment_text_of(sweep.base, settings, path.parent.name, path.parent)
    for path, text in texts.items():
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            fix = "prepare into another folder; an axis may grow at any time, its keys and the base may not change"
            raise OutputConflict("another sweep lies in this folder", where=path, fix=fix)
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
