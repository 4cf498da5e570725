"""Check every key and value of a sweep before anything is written: each stage validates the tables that axes change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lsdflow_contract.errors import ConfigError, OutputConflict, StageError, UsageError, rebuilt, together
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import Ask
from lsdflow_launch.slurm.table import cluster_of
from lsdflow_launch.sweep.file import Sweep
from lsdflow_launch.sweep.folder import planned
from lsdflow_launch.sweep.grid import At, grid_of

_PROCESSES = 2


def require_valid(sweep: Sweep, ask: Ask) -> None:
    """Raise all problems as one error: ConfigError (78) for an unknown key or a wrong value, those of prepare (65, 66).

    Also raises ConfigError (78) for an axis of a stage that no run needs: its runs would be identical.
    """
    keys = [key for axis in sweep.axes for key in axis.keys]
    if "experiment.name" in keys:
        raise ConfigError("the sweep itself names its runs", where=sweep.path, fix="take the axis experiment.name out")
    tables = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    for at in _distinct(sweep, [table for table in tables if table not in STAGES]):
        try:
            cluster_of(sweep.experiment_at(at))
        except StageError as error:
            raise _named(error.as_dict(), sweep, at) from error
    questions: list[tuple[str, At, Experiment]] = []
    for stage in (table for table in tables if table in STAGES):
        questions += [(stage, at, sweep.experiment_at(at)) for at in _distinct(sweep, [stage])]
        deciding = _distinct(sweep, ["experiment", "predict"])
        if not any(stage in sweep.experiment_at(at).stages for at in deciding):
            what = f"{next(key for key in keys if key.startswith(f'{stage}.'))} changes nothing: no run needs {stage}"
            fix = "take this axis out, or change the mode or the checkpoint of the base"
            raise ConfigError(what, where=sweep.path, found=f"mode {sweep.base.common.mode}", fix=fix)
    if problems := list(_problems(sweep, questions, ask)):
        raise together(problems)


def _problems(sweep: Sweep, questions: Sequence[tuple[str, At, Experiment]], ask: Ask) -> Iterator[StageError]:
    def answer(question: tuple[str, At, Experiment]) -> list[dict[str, Any]]:
        """Return the problems that a stage finds with the settings of a run."""
        found = ask(question[0], stage_arguments("validate", question[2]))
        return found if isinstance(found, list) else [found]

    with ThreadPoolExecutor(_PROCESSES) as pool:
        for (stage, at, _), answers in zip(questions, pool.map(answer, questions), strict=True):
            for problem in answers:
                if stage == STAGES[0] or problem["exit_code"] in (ConfigError.exit_code, UsageError.exit_code):
                    yield _named(problem, sweep, at)


def _distinct(sweep: Sweep, tables: Sequence[str]) -> list[dict[str, str]]:
    """Return the first point of the grid for each different content of these tables."""
    axes = {axis.name for axis in sweep.axes if any(key.partition(".")[0] in tables for key in axis.keys)}
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for at in grid_of(sweep.axes):
        found.setdefault(tuple(at[name] for name in at if name in axes), at)
    return list(found.values())


def _named(problem: Mapping[str, Any], sweep: Sweep, at: At) -> StageError:
    """Return the problem as an error that names the sweep's file and the point of the grid."""
    values = ", ".join(f"{axis} = {label}" for axis, label in at.items())
    return rebuilt({**problem, "where": f"{sweep.path}: {values}: {problem['where']}"})


def require_fresh_base(sweep: Sweep, ask: Ask) -> None:
    """Raise OutputConflict (73) if a stage that the runs share with the base finished with other settings than now."""
    first = planned(sweep, sweep.default_folder).runs[0].nodes[0]
    for stage in first.stages if first.is_base else ():
        # Results after a stage that never ran were imported, so the stage cannot check them.
        if not sweep.base.layout.manifest(stage).exists():
            return
        if ask(stage, stage_arguments("status", sweep.base)).get("finished") is False:
            what = f"{stage} of the base finished with other settings or inputs than it has now"
            fix = f"run it again: lsdflow run {sweep.base.path.parent} --to {stage}"
            raise OutputConflict(what, where=sweep.base.path, fix=fix)
