"""The results of all runs of a sweep: a row per run, means over seeds or folds, and an estimate of what is left.

The experiment of every run is read, in one folder or several (servers without shared storage).
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lsdflow_command.lock_file import Holder
from lsdflow_contract.errors import ContractMismatch, StageError
from lsdflow_contract.experiment import STAGES, load_experiment, stages_of_mode
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.sweep.folder import PlannedNode, PlannedRun, SweepFolder, SweepPlan, open_stages
from lsdflow_launch.sweep.grid import Run, part_of
from lsdflow_launch.sweep.result import RunResult, result_of, worker_of

LOG = logging.getLogger("lsdflow.sweep")
FIRST_METRICS = ("voi", "voi_split", "voi_merge", "adapted_rand_error", "rand", "threshold")


@dataclass(frozen=True)
class Row:
    """A run of the grid, with its result if it has one, and the process that computes it now."""

    run: PlannedRun
    result: RunResult | None
    worker: Holder | None = None

    @property
    def status(self) -> str:
        """The status: done, failed, running or missing."""
        if self.result is not None and (self.result.status == "done" or self.worker is None):
            return self.result.status
        return "missing" if self.worker is None else "running"

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores of a run that is done."""
        return self.result.scores if self.result is not None and self.result.status == "done" else {}


@dataclass(frozen=True)
class Mean:
    """Runs that differ only in averaged axes: mean and standard deviation of every score over those that are done."""

    at: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def done(self) -> int:
        """The number of rows that are done."""
        return sum(row.status == "done" for row in self.rows)

    @property
    def state(self) -> Literal["complete", "partial", "failed", "missing"]:
        """The state. complete: a mean over all runs; partial: over some of them; failed, missing: over none."""
        if self.done:
            return "complete" if self.done == len(self.rows) else "partial"
        return "failed" if any(row.status == "failed" for row in self.rows) else "missing"

    @property
    def seconds(self) -> float | None:
        """The mean run time of the done runs, all stages together; None if there are none."""
        values = [sum(row.result.seconds.values()) for row in self.rows if row.status == "done" and row.result]
        return statistics.fmean(values) if values else None

    def mean(self, metric: str) -> float | None:
        """Return the arithmetic mean over the done runs that have the score; None if there are none."""
        values = self._values(metric)
        return statistics.fmean(values) if values else None

    def deviation(self, metric: str) -> float | None:
        """Return the sample standard deviation (n - 1); None for fewer than two runs."""
        values = self._values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, metric: str) -> list[float]:
        return [row.scores[metric] for row in self.rows if metric in row.scores]


@dataclass(frozen=True)
class Merged:
    """A sweep with the results of all its runs."""

    plan: SweepPlan
    rows: tuple[Row, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs by status."""
        found = [row.status for row in self.rows]
        return {status: found.count(status) for status in ("done", "failed", "running", "missing")}

    @property
    def without_metric(self) -> int:
        """The number of runs that are done and do not have the score that the sweep compares."""
        return sum(row.status == "done" and self.plan.metric not in row.scores for row in self.rows)

    @property
    def metrics(self) -> list[str]:
        """The names of all scores that any run has, in the order of FIRST_METRICS, then sorted."""
        found = {name for row in self.rows for name in row.scores}
        return [n for n in FIRST_METRICS if n in found] + sorted(found - set(FIRST_METRICS))

    @property
    def kept_axes(self) -> list[str]:
        """The axes that are not averaged."""
        return [axis for axis in self.plan.axes if axis not in self.plan.means_over]

    @property
    def means(self) -> list[Mean]:
        """One mean for each combination of the axes that are kept, in the order of the grid."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(row.run.at[axis] for axis in self.kept_axes), []).append(row)
        return [Mean(dict(zip(self.kept_axes, at, strict=True)), tuple(rows)) for at, rows in groups.items()]

    @property
    def best(self) -> Mean | None:
        """The complete mean with the lowest value of the sweep's metric."""
        complete = [m for m in self.means if m.state == "complete" and m.mean(self.plan.metric) is not None]
        return min(complete, key=lambda m: m.mean(self.plan.metric) or 0.0, default=None)


def merged(folders: Sequence[SweepFolder]) -> Merged:
    """Merge all runs of one grid. Raises ContractMismatch (76) if the folders hold different grids.

    Of several results of a run, one that is done is used; if two are done and differ, a warning is logged.
    """
    first = folders[0]
    for other in folders[1:]:
        if other.plan.grid_hash != first.plan.grid_hash:
            raise ContractMismatch(
                "the folders hold different sweeps", where=other.root, wanted=f"the grid of {first.root}"
            )
    rows = []
    for number, run in enumerate(first.plan.runs):
        found = [(folder, folder.plan.runs[number]) for folder in folders]
        results = [result for folder, r in found if (result := result_of(folder, r)) is not None]
        workers = (worker_of(folder.run_folder(r)) for folder, r in found)
        rows.append(Row(run, _best_of(run, results), next(filter(None, workers), None)))
    return Merged(first.plan, tuple(rows))


def _best_of(run: PlannedRun, results: Sequence[RunResult]) -> RunResult | None:
    done = [result for result in results if result.status == "done"]
    if any(not _same(result.scores, done[0].scores) for result in done[1:]):
        LOG.warning("warning: %s was made twice, with different scores; the first folder counts", run.name)
    return next(iter([*done, *sorted(results, key=lambda result: -result.started)]), None)


def _same(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return a.keys() == b.keys() and all(math.isclose(a[name], b[name], rel_tol=1e-9) for name in a)


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


def _open_stages(sweep: SweepFolder, node: PlannedNode) -> tuple[str, ...]:
    folder = sweep.folder(node)
    if not ExperimentLayout(folder).experiment_toml.exists():
        return tuple(stage for stage in node.stages if stage in stages_of_mode(node.mode))  # not prepared yet
    return open_stages(load_experiment(folder), node)


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
