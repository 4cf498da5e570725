"""The folders of a sweep: which folder each stage of a run is computed in, and sweep.json, the plan on disk.

Stages that no axis changes are computed once and shared. Each folder is an experiment; for the axes
agglomerate.merge_functions and segment.threshold:

base             prepare, train-*, predict, watershed
shared/<m>/      agglomerate                                 links to the base's arrays, graph and manifests
runs/<m>_<t>/    segment, evaluate                           links to those of shared/<m>

The experiment file of a folder has the tables of the base with the keys of the run. No volume is copied.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput, OutputConflict
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment, validated
from lsdflow_contract.files import storage_errors, write_if_changed
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest, require_contract
from lsdflow_contract.model import StrictModel
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_launch.disk import result_folders
from lsdflow_launch.init.template import toml_key, toml_value
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.grid import RUNS, SHARED, Axis, Node, Run, grid_of, unique_names

# Tables that belong to no stage: the first stage whose result or run time they can change.
_FIRST_STAGE = {"experiment": "train-lsd", "compute": "train-lsd", "cluster": "train-lsd", "store": "predict"}
# Each run has its own database, so rows of watershed and later stages cannot be linked.
_FIRST_IN_DATABASE = "watershed"
PLAN_NAME = "sweep.json"
# Keys that hold a path in any table. Some may hold a word like "truth" or "best", which is no file.
PATH_KEYS = {
    *("raw", "labels", "truth", "mask", "mask_file", "skeletons", "checkpoint", "lsd_checkpoint"),
    *("initial_weights", "uri_file", "images", "binds"),
}
WORDS = {"", "auto", "truth", "none", "best", "trained_with"}
LONGEST_DATABASE = 50


class SweepPlan(StrictModel):
    """The content of sweep.json, written by `sweep prepare`."""

    contract: str = CONTRACT_VERSION
    base_file: str = Field(description="relative to the sweep's folder")
    base_hash: str = Field(description="sha256 of the base's experiment file")
    axes: dict[str, tuple[str, ...]] = Field(description="labels of each axis")
    split_by: tuple[str, ...]
    means_over: tuple[str, ...]
    metric: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class SweepFolder:
    """A prepared sweep."""

    root: Path
    plan: SweepPlan

    def folder(self, node: Node) -> Path:
        """Return the folder of a node's experiment."""
        return Path(os.path.normpath(self.root / node.folder))

    @property
    def base_file(self) -> Path:
        """The experiment file of the base."""
        return Path(os.path.normpath(self.root / self.plan.base_file))

    def run_folder(self, run: Run) -> Path:
        """Return the folder of a run's own experiment."""
        return self.folder(run.nodes[-1])

    def require_base(self) -> None:
        """Raise OutputConflict (73) if the base's experiment file changed after `sweep prepare`.

        Raises MissingInput (66) if it does not exist.
        """
        if not self.base_file.is_file():
            raise MissingInput("the base experiment is not there", where=self.base_file)
        if hash_of_file(self.base_file) != self.plan.base_hash:
            what, fix = (
                "was changed after the sweep was prepared",
                "put it back, or prepare the sweep in another folder",
            )
            raise OutputConflict(f"the base experiment {what}", where=self.base_file, fix=fix)


def planned(sweep: Sweep, root: Path) -> SweepPlan:
    """Return the plan of a sweep whose folder is `root`; writes nothing."""
    root = root.resolve()
    return SweepPlan(
        base_file=os.path.relpath(sweep.base.path, root),
        base_hash=hash_of_file(sweep.base.path),
        axes={axis.name: tuple(axis.points) for axis in sweep.axes},
        split_by=sweep.split_by,
        means_over=sweep.means_over,
        metric=sweep.metric,
        runs=tuple(_runs(sweep, os.path.relpath(sweep.base.path.parent, root))),
    )


def _runs(sweep: Sweep, base: str) -> list[Run]:
    """Return the runs. Their folders are the levels of the chain: a level ends where an axis begins."""
    cuts = sorted({_first_index(axis, sweep) for axis in sweep.axes})
    begun = {cut: _axes_begun(sweep, cut) for cut in cuts}
    names = {
        cut: dict(zip((tuple(at.values()) for at in grid_of(axes)), unique_names(axes), strict=True))
        for cut, axes in begun.items()
    }
    runs = []
    for number, at in enumerate(grid_of(sweep.axes), 1):
        wanted = sweep.experiment_at(at).stages
        folders = [base] if cuts[0] > 0 else []
        folders += [f"{SHARED}{names[cut][tuple(at[axis.name] for axis in begun[cut])]}" for cut in cuts]
        name = folders[-1].removeprefix(SHARED)
        bounds = itertools.pairwise([0, *cuts, len(STAGES)] if cuts[0] > 0 else [*cuts, len(STAGES)])
        levels = {
            folder: tuple(stage for stage in STAGES[begin:end] if stage in wanted)
            for folder, (begin, end) in zip([*folders[:-1], f"{RUNS}{name}"], bounds, strict=True)
        }
        # A level between two trainings is empty if the run does not need the first one.
        nodes = tuple(Node(folder=folder, stages=stages) for folder, stages in levels.items() if stages)
        runs.append(Run(number=number, name=name, at=at, nodes=nodes))
    return runs


def _axes_begun(sweep: Sweep, stage: int) -> list[Axis]:
    """Return the axes that can change the stage of this index or an earlier one."""
    return [axis for axis in sweep.axes if _first_index(axis, sweep) <= stage]


def _first_index(axis: Axis, sweep: Sweep) -> int:
    """Return the index of the first stage that an axis can change; a stage depends on its table and earlier stages."""
    tables = [key.partition(".")[0] for key in axis.keys]
    first = min(STAGES.index(_FIRST_STAGE.get(table, table)) for table in tables)
    engines = [point.get("store.engine") for axis in sweep.axes for point in axis.points.values()]
    uses_mongo = "mongo" in (sweep.base.store.engine, *engines)
    return min(first, STAGES.index(_FIRST_IN_DATABASE)) if uses_mongo else first


def open_stages(experiment: Experiment, node: Node) -> tuple[str, ...]:
    """Return the stages of a node, whose experiment is given, that have still to run.

    In the base, a stage before a finished one is not needed: its results were imported.
    """
    stages = [stage for stage in node.stages if stage in experiment.stages]
    finished = [experiment.layout.manifest(stage).exists() for stage in stages]
    if node.is_base:
        return tuple(stages[len(stages) - finished[::-1].index(True) :] if any(finished) else stages)
    return tuple(stages[finished.index(False) :] if not all(finished) else ())


def write_folders(sweep: Sweep, root: Path) -> SweepFolder:
    """Write sweep.json and the experiment file of every run and shared folder; a larger grid keeps the existing files.

    Raises OutputConflict (73) if the file of a run would change, because of another sweep or another base.
    """
    folder = SweepFolder(root.resolve(), planned(sweep, root))
    texts: dict[Path, str] = {}
    for run in folder.plan.runs:
        for node in run.nodes:
            path = folder.folder(node) / "experiment.toml"
            if path != sweep.base.path and path not in texts:
                begun = _axes_begun(sweep, STAGES.index(node.stages[0]))
                texts[path] = _experiment_text(sweep.experiment_at(run.at, begun), path.parent)
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
    raw = read_sealed(path, "prepare the sweep again")
    require_contract(str(raw.get("contract", "")), path)
    return SweepFolder(root.resolve(), validated(SweepPlan, raw, "sweep", path))


def _experiment_text(experiment: Experiment, folder: Path) -> str:
    """Return the text of an experiment file in `folder`, with the tables of an experiment in another folder."""
    tables = dict(moved_paths(experiment.tables, experiment.path.parent.resolve(), folder.resolve()))
    # Unlike names of runs, names of experiments have no plus sign.
    tables["experiment"] = {**tables.get("experiment", {}), "name": folder.name.replace("+", "-")}
    if experiment.store.engine == "mongo":
        # A database holds the graph of one experiment, so every run needs its own.
        owner = experiment.database[:LONGEST_DATABASE]
        tables["store"]["database"] = f"{owner}-{hash_of(str(folder.resolve()))[:10]}"
    lines = [f"# A run of a sweep: the tables of {experiment.path.name} of its base, and the keys of this run."]
    for table, content in tables.items():
        lines += ["", f"[{table}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in content.items())]
    return "\n".join(lines) + "\n"


def moved_paths(value: Any, old: Path, new: Path, key: str = "") -> Any:
    """Rewrite relative paths of the tables of an experiment in `old` so that they are relative to `new`."""
    if isinstance(value, Mapping):
        return {name: moved_paths(part, old, new, name) for name, part in value.items()}
    if isinstance(value, list):
        return [moved_paths(part, old, new, key) for part in value]
    if key not in PATH_KEYS or not isinstance(value, str) or value in WORDS or Path(value).is_absolute():
        return value
    # A path that begins with ".." was written for this base; its file may be gone.
    return os.path.relpath(old / value, new) if value.startswith("..") or _exists(old / value) else value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or a NUL: the text is not a path
        return False


def link_stages(stages: Iterable[str], source: Path, target: Path) -> None:
    """Link the results of finished stages of the experiment folder `source` into `target`; correct links are kept.

    Raises OutputConflict (73) if another file or folder is in the place of a link.
    """
    layout, into = ExperimentLayout(source), ExperimentLayout(target)
    for stage in stages:
        if not layout.manifest(stage).exists():
            continue
        manifest = read_manifest(layout, stage)
        for path in _shared_paths(layout, stage, manifest.outputs.values()):
            _link(path, target / path.relative_to(source))
        if stage in TRAININGS and into.result(stage, manifest.key).is_dir():
            _link(into.result(stage, manifest.key), into.train_dir(stage))
        _link(layout.manifest(stage), into.manifest(stage))


def _shared_paths(layout: ExperimentLayout, stage: str, outputs: Iterable[str]) -> Sequence[Path]:
    """Return the existing files and folders of a finished stage that later stages read, without its manifest."""
    results = layout.results / stage
    stored = {layout.store / "blocks" / stage, *result_folders(layout, stage)} - {results, layout.train_dir(stage)}
    imported = [layout.root / path for path in outputs if not path.startswith("results/")]
    return [path for path in (*sorted(results.glob("*")), *sorted(stored), *imported) if path.exists()]


def _link(path: Path, link: Path) -> None:
    with storage_errors(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        leads_to = os.path.relpath(path, link.parent.resolve())
        try:
            link.symlink_to(leads_to)
        except FileExistsError as error:
            if link.exists() and link.samefile(path):
                return
            fix = "a run of a sweep is no place for other results: move it away"
            raise OutputConflict("something else is where a shared result belongs", where=link, fix=fix) from error
