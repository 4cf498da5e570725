"""Check every key and value of a sweep against the tables of the stages before anything is written.

Keys are checked with the JSON schemas of the stages. For values, each stage that an axis changes validates the
experiment files of the runs in a temporary folder.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError, OutputConflict, StageError, UsageError
from lsdflow_contract.experiment import (
    STAGES,
    ComputeTable,
    ExperimentTable,
    StoreTable,
    did_you_mean,
    load_experiment,
    nearest,
)
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.model import StrictModel
from lsdflow_contract.trainings import TRAININGS
from lsdflow_launch.chain import stage_arguments, stages_of
from lsdflow_launch.commands import Ask
from lsdflow_launch.slurm.table import ClusterTable, cluster_of
from lsdflow_launch.sweep.experiments import experiment_text_of
from lsdflow_launch.sweep.file import TABLES, Sweep
from lsdflow_launch.sweep.folder import planned_runs
from lsdflow_launch.sweep.grid import Run
from lsdflow_launch.sweep.merge import FIRST_METRICS

LOG = logging.getLogger("lsdflow.sweep")
_MODELS: dict[str, type[StrictModel]] = {
    "experiment": ExperimentTable,
    "store": StoreTable,
    "compute": ComputeTable,
    "cluster": ClusterTable,
}
_PROCESSES = 2


def require_valid(sweep: Sweep, ask: Ask) -> None:
    """Raise ConfigError (78) for an unknown key or a wrong value; for volumes also the errors of prepare (65, 66).

    The first problem is raised, the others are logged.
    """
    keys = list(dict.fromkeys(key for axis in sweep.axes for key in axis.keys))
    tables = list(dict.fromkeys(_table_of(key, sweep.path) for key in keys))
    _refuse_axes_without_effect(sweep, keys)
    if sweep.metric not in FIRST_METRICS and (fix := nearest(sweep.metric, FIRST_METRICS)):
        LOG.warning("warning: %s: metric = %r; %s", sweep.path, sweep.metric, fix)
    schemas = {t: _MODELS[t].model_json_schema(by_alias=True) if t in _MODELS else ask(t, ["schema"]) for t in tables}
    for key in keys:
        _require_key(key, schemas, sweep.path)
    with tempfile.TemporaryDirectory(prefix="lsdflow-sweep-") as scratch:
        problems = list(_problems(sweep, tables, Path(scratch), ask))
    for problem in problems[1:]:
        LOG.error("also: %s", problem.message())
    if problems:
        raise problems[0]


def _refuse_axes_without_effect(sweep: Sweep, keys: Sequence[str]) -> None:
    """Raise ConfigError (78) for an axis of a training that no run needs: its runs would be identical."""
    if {"experiment.mode", "predict.checkpoint", "predict.lsd_checkpoint"} & {*keys}:
        return
    for key in keys:
        stage = key.partition(".")[0]
        if stage in TRAININGS and stage not in sweep.base.stages:
            given = sweep.base.tables.get("predict", {}).get("checkpoint", "")
            raise ConfigError(
                f"{key} changes nothing: no run trains with {stage}",
                where=sweep.path,
                found=f"mode {sweep.base.common.mode}" + (f", predict.checkpoint = {given}" if given else ""),
                fix="take this axis out, or change the mode or the checkpoint of the base",
            )


def _table_of(key: str, path: Path) -> str:
    table, dot, rest = key.partition(".")
    if not dot or not rest:
        raise ConfigError("an axis is table.key", where=path, found=repr(key), fix=did_you_mean(table, TABLES))
    if table not in TABLES:
        raise ConfigError(f"no table {table!r}", where=path, found=repr(key), fix=did_you_mean(table, TABLES))
    if key == "experiment.name":
        raise ConfigError("the sweep itself names its runs", where=path, found=repr(key), fix="take this axis out")
    return table


def _require_key(key: str, schemas: Mapping[str, dict[str, Any]], path: Path) -> None:
    table, *parts = key.split(".")
    node = schemas[table]
    for depth, part in enumerate(parts):
        known = _properties(node, schemas[table].get("$defs", {}))
        if part not in known:
            dotted = ".".join([table, *parts[: depth + 1]])
            fix = did_you_mean(part, list(known)) if known else f"{dotted.rpartition('.')[0]} is a value, not a table"
            raise ConfigError(f"no key {dotted}", where=path, found=repr(key), fix=fix)
        node = known[part]


def _properties(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a schema's node: its own, and those of its references."""
    if "$ref" in node:
        return _properties(definitions[node["$ref"].rpartition("/")[2]], definitions)
    found = dict(node.get("properties", {}))
    for variant in (*node.get("anyOf", ()), *node.get("allOf", ())):
        found |= _properties(variant, definitions)
    return found


def _problems(sweep: Sweep, tables: Sequence[str], scratch: Path, ask: Ask) -> Iterator[StageError]:
    """Yield the problems of the runs' tables: common tables are checked here, those of a stage by the stage."""
    common = [table for table in tables if table not in STAGES]
    for run in _distinct(sweep.runs, common) if common else ():
        try:
            cluster_of(load_experiment(_written(sweep, run, scratch)))
        except StageError as error:
            yield _named(error.as_dict(), sweep, run, scratch)
            return
    pairs = [(stage, run) for stage in tables if stage in STAGES for run in _distinct(sweep.runs, [stage])]
    questions = [(stage, run, _written(sweep, run, scratch)) for stage, run in pairs]

    def answer(question: tuple[str, Run, Path]) -> list[dict[str, Any]]:
        """Validate one run's experiment file with a stage; return the problems that were found."""
        stage, _, path = question
        found = ask(stage, ["validate", "--experiment", str(path), "--json"])
        return found if isinstance(found, list) else [found]

    with ThreadPoolExecutor(_PROCESSES) as pool:
        for (stage, run, _), answers in zip(questions, pool.map(answer, questions), strict=True):
            for problem in answers:
                if stage == STAGES[0] or problem["exit_code"] in (ConfigError.exit_code, UsageError.exit_code):
                    yield _named(problem, sweep, run, scratch)


def _distinct(runs: Sequence[Run], tables: Sequence[str]) -> list[Run]:
    """Return the first run of each different content of these tables."""
    found: dict[str, Run] = {}
    for run in runs:
        part = {key: value for key, value in run.settings.items() if key.split(".")[0] in tables}
        found.setdefault(hash_of(part), run)
    return list(found.values())


def _written(sweep: Sweep, run: Run, scratch: Path) -> Path:
    path = scratch / str(run.number) / "experiment.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(experiment_text_of(sweep.base, run.settings, run.name, path.parent), encoding="utf-8")
    return path


def _named(problem: Mapping[str, Any], sweep: Sweep, run: Run, scratch: Path) -> StageError:
    """Return the problem as an error that names the sweep's file and the run instead of the temporary folder."""
    kinds: dict[int, Callable[..., StageError]] = {kind.exit_code: kind for kind in StageError.__subclasses__()}
    at = ", ".join(f"{axis} = {label}" for axis, label in run.at.items())
    place = str(problem["where"]).replace(str(scratch / str(run.number) / "experiment.toml"), "").lstrip(": ")
    where = f"{sweep.path}: {at}" + (f": {place}" if place else "")
    parts = {name: problem.get(name, "") for name in ("wanted", "found", "fix")}
    return kinds.get(int(problem["exit_code"]), StageError)(str(problem["what"]), where=where, **parts)


def require_fresh_base(sweep: Sweep, ask: Ask) -> None:
    """Raise OutputConflict (73) if a stage that the runs share with the base finished with other settings than now."""
    first = planned_runs(sweep, sweep.default_folder)[0].nodes[0]
    shared = first.stages if first.is_base else ()
    layout = sweep.base.layout
    for stage in stages_of(sweep.base):
        # Results after a stage that never ran were imported, so the stage cannot check them.
        if stage not in shared or not layout.manifest(stage).exists():
            return
        if ask(stage, stage_arguments("status", sweep.base)).get("finished") is False:
            raise OutputConflict(
                f"{stage} of the base finished with other settings or inputs than it has now",
                where=sweep.base.path,
                fix=f"run it again: lsdflow run {sweep.base.path.parent} --to {stage}",
            )
