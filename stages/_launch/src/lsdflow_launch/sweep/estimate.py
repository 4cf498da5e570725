"""What a sweep will cost: how often each stage is made, hours and bytes, from runs that have finished."""

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
    """Facts of a grid on `parts` servers: times each stage is made, its seconds once, hours left in all and of the
    slowest server, bytes. A stage without a finished run to learn from is named in `not_known`.
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
    """How often each stage has still to be made for these runs; what is shared counts once."""
    folders = {node.folder: node for run in runs for node in run.nodes}
    open_ = [stage for node in folders.values() for stage in _open_stages(sweep, node)]
    return {stage: open_.count(stage) for stage in STAGES if stage in open_}


def runs_of_part(sweep: SweepFolder, number: int, parts: int) -> list[PlannedRun]:
    """The planned runs of one server of `parts`."""
    by_name = {run.name: run for run in sweep.plan.runs}
    return [by_name[run.name] for run in part_of(grid_runs(sweep), sweep.plan.split_by, number, parts)]


def grid_runs(sweep: SweepFolder) -> list[Run]:
    """The runs of a prepared sweep as points of its grid; which keys they set is in their files by now."""
    return [Run(run.number, run.name, run.at, {}) for run in sweep.plan.runs]


def own_bytes(folder: Path) -> int:
    """Bytes of the files of a folder; what is only linked does not count."""
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
    """Mean seconds of each stage over the results of this sweep, else as the base has taken."""
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
