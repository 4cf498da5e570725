"""The results of an experiment: `lsdflow results` lists them, `use` makes one current, `clean` drops the others.

    results/watershed/1c0f4a2b/        fragments.zarr, manifest.json (once it is finished)
    results/watershed/9e77d013/
    manifests/watershed.json           a copy of the manifest of the current one
    train/train-lsd                    of a training, also a link to the current one

A result is never overwritten. Later stages, the report and the viewer read the result whose manifest is in manifests/.
A result is dropped in this order: its manifest, its done marks, its rows, its arrays. So a mark or manifest never
remains without its data.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import MissingInput, StageError, UsageError
from lsdflow_contract.experiment import BLOCK_STAGES, STAGES, TRAININGS, Experiment, did_you_mean, load_experiment
from lsdflow_contract.files import storage_errors
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import LUTS_FACT, luts_of
from lsdflow_contract.manifest import (
    Manifest,
    current_key,
    differences,
    finished_manifests,
    read_kept_manifest,
    read_manifest,
)
from lsdflow_contract.trainings import current_training, make_current
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import ask_stage, error_of
from lsdflow_launch.disk import disk_use
from lsdflow_launch.options import Debug, Folder, Json
from lsdflow_launch.output import duration, next_line, print_answer, size
from lsdflow_launch.slurm.jobs import refuse_if_known_to_be_queued

HEADING = f"{'stage':<12} {'key':<8}  {'state':<10} {'size':>9}  {'last change':>12}  arrays and different settings"
Key = Annotated[str, typer.Argument(help="key of the result, or its beginning: lsdflow results lists them")]


@dataclass(frozen=True)
class Result:
    """One result of a stage: its key (8 characters), its containers, and how its settings differ from the current."""

    stage: str
    key: str
    current: bool
    finished: bool
    size_bytes: int
    changed: float
    containers: tuple[str, ...]
    differs: str

    def line(self, now: float) -> str:
        """Return the result in one line. now: seconds since 1970."""
        state = "current" if self.current else "finished" if self.finished else "unfinished"
        age = f"{duration(max(now - self.changed, 0))} ago"
        facts = f"{self.stage:<12} {self.key}  {state:<10} {size(self.size_bytes):>9}  {age:>12}"
        return "  ".join([facts, *filter(None, [", ".join(self.containers), self.differs])])


def results_of(layout: ExperimentLayout) -> list[Result]:
    """Return all results, by stage, the newest last."""
    found = []
    for stage in STAGES:
        folders = [folder for folder in (layout.results / stage).glob("*") if folder.is_dir()]
        kept = {folder.name: _kept(layout, stage, folder.name) for folder in folders}
        current = _named(layout, stage, _kept(layout, stage, current_key(layout, stage)))
        if stage in TRAININGS:
            current |= {current_training(layout, stage), (_lsd_training(layout) if stage == "train-lsd" else "")}
        whole = set[str]().union(*(_named(layout, stage, manifest) for manifest in kept.values()))
        results = [
            _result(
                layout, stage, folder, kept[folder.name], current=folder.name in current, whole=folder.name in whole
            )
            for folder in folders
        ]
        found += sorted(results, key=lambda result: (result.changed, result.key))
    return found


def _named(layout: ExperimentLayout, stage: str, manifest: Manifest | None) -> set[str]:
    """Return the folders of a result: its own, and those of earlier passes whose arrays its manifest names."""
    if manifest is None:
        return set()
    outputs = [layout.root / path for path in manifest.outputs.values()]
    folders = {
        p.relative_to(layout.results / stage).parts[0] for p in outputs if p.is_relative_to(layout.results / stage)
    }
    return {manifest.key[:8], *folders}


def _result(
    layout: ExperimentLayout, stage: str, folder: Path, manifest: Manifest | None, *, current: bool, whole: bool
) -> Result:
    differs = ""
    if manifest is not None and not current:
        with suppress(StageError):
            differs = differences(read_manifest(layout, stage), manifest.config, manifest.inputs)
    changed = (folder / "manifest.json" if manifest else folder).stat().st_mtime
    containers = tuple(sorted(path.name for path in folder.glob("*.zarr")))
    return Result(stage, folder.name, current, whole, _size(layout, stage, folder.name), changed, containers, differs)


def _kept(layout: ExperimentLayout, stage: str, key: str) -> Manifest | None:
    try:
        return read_kept_manifest(layout, stage, key)
    except StageError:
        return None


def _parts(layout: ExperimentLayout, stage: str, key: str) -> list[Path]:
    """Return the files and folders of a result, in the order in which they are dropped."""
    marks = list((layout.store / "blocks" / stage).glob(f"{key}*"))
    rows = [folder for name in ("nodes", "edges_*", "overlaps_*") for folder in layout.store.glob(f"{name}/{key}*")]
    return [*marks, *rows, layout.result(stage, key)]


def _tables(layout: ExperimentLayout, stage: str, keys: Collection[str]) -> list[Path]:
    """Return the folders of lookup tables that only the results of segment with these `keys` use."""
    if stage != "segment":
        return []
    named = {m.key[:8]: luts_of(layout, m) for m in finished_manifests(layout, stage).values() if LUTS_FACT in m.facts}
    others = {folder for key, folder in named.items() if key not in keys}
    own = {folder for key, folder in named.items() if key in keys} - others
    return sorted(folder for folder in own if folder.is_dir() and layout.luts in folder.parents)


def _size(layout: ExperimentLayout, stage: str, key: str) -> int:
    return disk_use([*_parts(layout, stage, key), *_tables(layout, stage, {key})]).size_bytes


def use(layout: ExperimentLayout, stage: str, key: str) -> Manifest:
    """Make the finished result of `key` (or of its beginning) the current one of the stage.

    With an affinity network, the LSD network that it was trained with also becomes current.
    Raises MissingInput (66) if there is none or it is not finished, UsageError (2) for an unknown stage or if several
    match, OutputConflict (73) if another process works on the experiment.
    """
    if stage not in STAGES:
        raise UsageError(f"no stage {stage!r}", wanted=", ".join(STAGES), fix=did_you_mean(stage, STAGES))
    found = [result for result in results_of(layout) if result.stage == stage and result.key.startswith(key)]
    if len(found) > 1:
        raise UsageError("several results begin so", found=", ".join(r.key for r in found), fix="give the whole key")
    if not found or _kept(layout, stage, found[0].key) is None:
        raise MissingInput(
            f"no finished result of {stage} has this key",
            where=layout.results / stage,
            wanted=key,
            found=", ".join(r.key for r in results_of(layout) if r.stage == stage) or "none",
            fix=f"lsdflow results {layout.root}",
        )
    with experiment_lock(layout):
        manifest = read_kept_manifest(layout, stage, found[0].key)
        if stage in TRAININGS:
            make_current(layout, stage, manifest.key)
            if stage == "train-acrlsd" and (lsd := _lsd_training(layout)):
                make_current(layout, "train-lsd", read_kept_manifest(layout, "train-lsd", lsd).key)
        else:
            manifest.write(layout, stage)
    return manifest


def _lsd_training(layout: ExperimentLayout) -> str:
    """Return the result of train-lsd that the current affinity network was trained with; empty if it is missing."""
    affinities = _kept(layout, "train-acrlsd", current_key(layout, "train-acrlsd"))
    weights = "" if affinities is None else affinities.inputs.get("lsd_weights", "")
    for folder in (layout.results / "train-lsd").glob("*"):
        manifest = _kept(layout, "train-lsd", folder.name)
        if manifest is not None and manifest.identity == hash_of({"key": manifest.key, "weights": weights}):
            return folder.name
    return ""


def drop(experiment: Experiment, chosen: Sequence[Result]) -> list[Result]:
    """Remove results, except those that have become current; returns those that it removed.

    Raises OutputConflict (73), before anything is removed, if another process works on the experiment.
    """
    with experiment_lock(experiment.layout):
        current = {(found.stage, found.key) for found in results_of(experiment.layout) if found.current}
        dropped = [result for result in chosen if (result.stage, result.key) not in current]
        _drop(experiment, dropped)
    return dropped


def _drop(experiment: Experiment, dropped: Sequence[Result]) -> None:
    layout = experiment.layout
    keys: dict[str, list[str]] = {}
    for result in dropped:
        keys.setdefault(result.stage, []).append(result.key)
    tables = [folder for stage in keys for folder in _tables(layout, stage, keys[stage])]
    for result in dropped:
        folder = layout.result(result.stage, result.key)
        with storage_errors(folder):
            if not folder.is_symlink():
                (folder / "manifest.json").unlink(missing_ok=True)
    if experiment.store.engine != "files":
        for stage in filter(BLOCK_STAGES.__contains__, keys):
            _drop_rows(experiment, stage, keys[stage])
    for result in dropped:
        with storage_errors(layout.result(result.stage, result.key)):
            for part in _parts(layout, result.stage, result.key):
                _remove(part, layout.root)
    for folder in tables:
        with storage_errors(folder):
            _remove(folder, layout.root)


def _remove(folder: Path, root: Path) -> None:
    """Remove a folder. A link, as to another experiment in a run of a sweep, is removed without its target."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.resolve().is_relative_to(root.resolve()):
        shutil.rmtree(folder)


def _drop_rows(experiment: Experiment, stage: str, keys: Sequence[str]) -> None:
    """Run the stage's drop-rows, since this command has no database client. Raises the stage's error."""
    answer = ask_stage(stage, [*stage_arguments("drop-rows", experiment), *keys])
    if "exit_code" in answer:
        raise error_of(answer)


def add_result_verbs(app: typer.Typer) -> None:
    """Register `results`, `use` and `clean`."""

    @app.command()
    def results(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """List the results of each stage: which one is current, its size, its age, and how its settings differ."""
        with exit_codes(debug, as_json):
            found, now = results_of(load_experiment(folder, []).layout), time.time()
            lines = [HEADING, *(result.line(now) for result in found)] if found else ["no results yet"]
            print_answer(_facts_of(found), "\n".join(lines), as_json)

    @app.command(name="use")
    def use_(
        folder: Folder,
        stage: Annotated[str, typer.Argument(help="stage of the result")],
        key: Key,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Make an earlier result of a stage the current one, for the stages after it."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, [])
            layout = experiment.layout
            refuse_if_known_to_be_queued(experiment)
            manifest = use(layout, stage, key)
            lsd = _lsd_training(layout) if stage == "train-acrlsd" else ""
            later = STAGES[STAGES.index(stage) + 1 :]
            following = f"lsdflow run {folder} --from {later[0]}" if later else f"lsdflow report {folder}"
            facts = {"stage": stage, "key": manifest.key[:8], "next": following}
            lines = (
                f"{stage}: {manifest.key[:8]} is current",
                *([f"train-lsd: {lsd} is current, because this network was trained with it"] if lsd else []),
                f"experiment.toml is not changed: a run of {stage} makes the result of its settings current again",
                next_line(following),
            )
            print_answer(facts, "\n".join(lines), as_json)

    @app.command()
    def clean(
        folder: Folder,
        yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Drop the results that are not current, with their rows in the store, after showing their sizes."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, [])
            refuse_if_known_to_be_queued(experiment)
            dropped = [result for result in results_of(experiment.layout) if not result.current]
            for line in (result.line(time.time()) for result in dropped):
                typer.echo(line, err=True)
            total = sum(result.size_bytes for result in dropped)
            confirmed = dropped and (yes or _confirmed(f"drop {_count(dropped)} ({size(total)})?"))
            dropped = drop(experiment, dropped) if confirmed else []
            total = sum(result.size_bytes for result in dropped)
            print_answer({**_facts_of(dropped), "bytes": total}, f"{_count(dropped)} dropped", as_json)


def _confirmed(question: str) -> bool:
    """Return the user's answer. UsageError (2) if standard input ends without one."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        typer.echo(err=True)
        raise UsageError("no answer, so nothing was dropped", fix="answer y or n, or use --yes") from error


def _count(found: Sequence[Result]) -> str:
    return "1 result" if len(found) == 1 else f"{len(found)} results"


def _facts_of(found: Sequence[Result]) -> dict[str, Any]:
    return {"results": [asdict(result) for result in found]}
