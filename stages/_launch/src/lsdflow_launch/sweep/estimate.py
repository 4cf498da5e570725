"""Estimate of a sweep from its finished runs: how often each stage runs, hours and bytes."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.sweep.folder import SweepFolder
from lsdflow_launch.sweep.grid import Run, part_of
from lsdflow_launch.sweep.merge import merged
from lsdflow_launch.sweep.tree import PlannedNode, PlannedRun, open_stages


def estimate(sweep: SweepFolder, parts: int) -> dict[str, Any]:
    """Return the estimate for `parts` servers: runs of each stage, seconds of one, hours left, bytes.

    hours_left: of all servers together; hours_left_of_slowest_part: of the slowest one. `not_known` lists the stages
    without a finished run.
    """
    times = stages_to_make(sweep, sweep.plan.runs)
    seconds = _seconds_of_stages(sweep)
    known = {stage: count for stage, count in times.items() if stage in seconds}
    slowest = max(_hours(stages_to_make(sweep, runs_of_part(sweep, n, parts)), seconds) for n in range(1, parts + 1))
    finished = [sweep.run_folder(row.run) for row in merged([sweep]).rows if row.status == "done"]
    bytes_ = own_bytes(finished[0]) if finished else None
    return {
        "times_made": times,
        "seconds_once": {stage: round(seconds[stage], 1) for stage in known},
        "hours_left": round(_hours(times, seconds), 3),
        "hours_left_of_slowest_part": round(slowest, 3),
        "not_known": [stage for stage, count in times.items() if count and stage not in seconds],
        "bytes_left": None if bytes_ is None else bytes_ * (len(sweep.plan.runs) - len(finished)),
    }


def stages_to_make(sweep: SweepFolder, runs: Sequence[PlannedRun]) -> dict[str, int]:
    """Return how often each stage has still to run for these runs; shared stages count once."""
    folders = {node.folder: node for run in runs for node in run.nodes}
    open_ = [stage for node in folders.values() for stage in _open_stages(sweep, node)]
    return {stage: open_.count(stage) for stage in STAGES if stage in open_}


def runs_of_part(sweep: SweepFolder, number: int, parts: int) -> list[PlannedRun]:
    """Return the planned runs of server `number` of `parts`."""
    by_name = {run.name: run for run in sweep.plan.runs}
    return [by_name[run.name] for run in part_of(grid_runs(sweep), sweep.plan.split_by, number, parts)]


def grid_runs(sweep: SweepFolder) -> list[Run]:
    """Return the runs of a prepared sweep as points of its grid, without settings: the experiment files have them."""
    return [Run(run.number, run.name, run.at, {}) for run in sweep.plan.runs]


def own_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder, without symbolic links."""
    return sum(
        os.lstat(Path(parent) / name).st_size
        for parent, _, names in os.walk(folder)
        for name in names
        if not (Path(parent) / name).is_symlink()
    )


def _open_stages(sweep: SweepFolder, node: PlannedNode) -> list[str]:
    folder = sweep.folder(node)
    return list(open_stages(node.mode or load_experiment(folder).common.mode, node, folder))


def _seconds_of_stages(sweep: SweepFolder) -> dict[str, float]:
    """Return the mean seconds of each stage over the results of this sweep, otherwise those of the base."""
    results = [row.result for row in merged([sweep]).rows if row.result is not None]
    base = ExperimentLayout(sweep.base_folder)
    found = {}
    for stage in STAGES:
        values = [result.seconds[stage] for result in results if stage in result.seconds]
        if values:
            found[stage] = statistics.fmean(values)
        elif base.manifest(stage).exists():
            found[stage] = _seconds_of(base, stage)
    return {stage: value for stage, value in found.items() if math.isfinite(value)}


def _seconds_of(layout: ExperimentLayout, stage: str) -> float:
    try:
        return float(read_manifest(layout, stage).facts.get("seconds", math.nan))
    except StageError:
        return math.nan


def _hours(times: dict[str, int], seconds: dict[str, float]) -> float:
    return sum(count * seconds.get(stage, 0.0) for stage, count in times.items()) / 3600
