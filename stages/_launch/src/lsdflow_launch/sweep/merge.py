"""The results of all runs of a sweep: a row per run, means over seeds or folds, and an estimate of what is left.

The experiment of every run is read, in one folder or several (servers without shared storage).
"""

from __future__ import annotations

import logging
import math
import signal
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lsdflow_command.lock_file import LockFile
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, StageError
from lsdflow_contract.experiment import STAGES, Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_launch.chain import LAST, STOPPED
from lsdflow_launch.disk import disk_use
from lsdflow_launch.planning.evidence import VRAM, total
from lsdflow_launch.planning.plan import StageEstimate
from lsdflow_launch.status import newest_run, outcome_of
from lsdflow_launch.sweep.folder import SweepFolder, SweepPlan, open_stages
from lsdflow_launch.sweep.grid import Run, part_of

LOG = logging.getLogger("lsdflow.sweep")
FIRST_METRICS = ("voi", "voi_split", "voi_merge", "adapted_rand_error", "rand", "threshold")
# As a shell reports a process that SIGKILL has ended.
KILLED_CODE = 128 + signal.SIGKILL
KILLED = "ended without an outcome: it was killed, or its machine failed"
# Of several folders, the first of these states counts.
STATES = ("done", "running", "failed", "missing")


@dataclass(frozen=True)
class Row:
    """A run of the grid: its state, why it failed, and its scores once it is done; host: where its last stage ran."""

    run: Run
    status: Literal["done", "failed", "running", "missing"]
    exit_code: int = 0
    failed_stage: str = ""
    error: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    host: str = ""
    started: float = 0.0


def row_of(sweep: SweepFolder, run: Run) -> Row:
    """Return how far a run is, from the files of its experiment.

    A run is done once its last stage has finished; the shared stages were finished before it began. It has failed if
    its scores or a manifest are lost or damaged since; a run that the user stopped is missing. ContractMismatch (76).
    """
    layout = ExperimentLayout(sweep.run_folder(run))
    row = _finished(layout, run) if layout.manifest(LAST).exists() else _unfinished(sweep, run)
    holder = None if row.status == "done" else LockFile(layout.runs / "lock").live_holder()
    return row if holder is None else Row(run, "running", host=holder.host)


def _finished(layout: ExperimentLayout, run: Run) -> Row:
    ended = _ended(load_experiment(layout.root), LAST)[1]
    try:
        manifests = {s: read_manifest(layout, s) for s in STAGES if layout.manifest(s).exists()}
        seconds = {stage: float(manifest.facts.get("seconds", 0.0)) for stage, manifest in manifests.items()}
        page = layout.report / "index.html"
        return Row(run, "done", scores=scores_of(layout), seconds=seconds, report=page, **ended)
    except (BadData, MissingInput) as error:
        what = f"{Path(error.where).name}: {error.what}"
        return Row(run, "failed", error.exit_code, LAST, what, **ended)


def _unfinished(sweep: SweepFolder, run: Run) -> Row:
    for node in run.nodes:
        # A sweep that is not prepared has no folders, and a copy of its folders may have no base.
        if not ExperimentLayout(sweep.folder(node)).experiment_toml.exists():
            continue
        experiment = load_experiment(sweep.folder(node))
        for stage in open_stages(experiment, node)[:1]:
            outcome, ended = _ended(experiment, stage)
            if outcome.get("exit_code", 0) not in (0, *STOPPED):
                what = (outcome.get("error") or {}).get("what", "")
                return Row(run, "failed", outcome["exit_code"], stage, what, **ended)
            if not outcome and _was_killed(experiment, stage):
                return Row(run, "failed", KILLED_CODE, stage, KILLED)
            return Row(run, "missing")
    return Row(run, "missing")


def _was_killed(experiment: Experiment, stage: str) -> bool:
    """Return True for a stage that began and that no process computes; only called if it left no outcome."""
    locks = (experiment.layout.runs, experiment.layout.stage_runs(stage))
    running = any(LockFile(folder / "lock").live_holder() for folder in locks)
    return newest_run(experiment, stage) is not None and not running


def _ended(experiment: Experiment, stage: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the outcome of the newest run of a stage, and from it host and start for a row."""
    outcome = outcome_of(newest_run(experiment, stage, refused=True))
    return outcome, {"host": str(outcome.get("host", "")), "started": float(outcome.get("started") or 0.0)}


def scores_of(layout: ExperimentLayout) -> dict[str, float]:
    """Return the numbers of report/scores.json. MissingInput (66) or BadData (65) if it is lost or damaged."""
    found = read_sealed(layout.report / "scores.json", f"evaluate run --experiment {layout.root}")
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def has_scores(layout: ExperimentLayout) -> bool:
    """Return False if report/scores.json is lost or damaged."""
    try:
        return bool(scores_of(layout))
    except (BadData, MissingInput):
        return False


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
        values = [sum(row.seconds.values()) for row in self.rows if row.status == "done"]
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
    def metrics(self) -> list[str]:
        """The names of all scores that any run has, in the order of FIRST_METRICS, then sorted."""
        found = {name for row in self.rows for name in row.scores}
        return [n for n in FIRST_METRICS if n in found] + sorted(found - set(FIRST_METRICS))

    @property
    def means(self) -> list[Mean]:
        """One mean for each combination of the axes that are not averaged, in the order of the grid."""
        kept = [axis for axis in self.plan.axes if axis not in self.plan.means_over]
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(row.run.at[axis] for axis in kept), []).append(row)
        return [Mean(dict(zip(kept, at, strict=True)), tuple(rows)) for at, rows in groups.items()]

    @property
    def best(self) -> Mean | None:
        """The complete mean with the lowest value of the sweep's metric."""
        complete = [m for m in self.means if m.state == "complete" and m.mean(self.plan.metric) is not None]
        return min(complete, key=lambda m: m.mean(self.plan.metric) or 0.0, default=None)


def merged(folders: Sequence[SweepFolder]) -> Merged:
    """Merge all runs of one grid. Raises ContractMismatch (76) if the folders hold different grids.

    Of several folders, that where a run is done counts, and of two failures the last one; if a run is done twice with
    different scores, a warning is logged.
    """
    first = folders[0]
    for other in folders[1:]:
        if other.plan.axes != first.plan.axes:
            raise ContractMismatch(
                "the folders hold different sweeps", where=other.root, wanted=f"the grid of {first.root}"
            )
    rows = []
    for runs in zip(*(folder.plan.runs for folder in folders), strict=True):
        found = [row_of(folder, run) for folder, run in zip(folders, runs, strict=True)]
        found.sort(key=lambda row: (STATES.index(row.status), -row.started if row.status == "failed" else 0.0))
        rows.append(found[0])
        if any(row.status == "done" and not _same(row.scores, found[0].scores) for row in found):
            LOG.warning("warning: %s was made twice, with different scores; the first folder counts", runs[0].name)
    return Merged(first.plan, tuple(rows))


def _same(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return a.keys() == b.keys() and all(math.isclose(a[name], b[name], rel_tol=1e-9) for name in a)


def estimate(sweep: SweepFolder, parts: int, plan: Mapping[str, StageEstimate] | None = None) -> dict[str, Any]:
    """Return the estimate for `parts` servers: runs of each stage, seconds of one, hours left, bytes.

    plan: estimates of the base, for what no finished run says. hours_left: of all servers together;
    hours_left_of_slowest_part: of the slowest one. `not_known` lists the stages without a time. gpu_bytes: memory of a
    GPU that the stages of the base need, None if it is not known.
    """
    rows = merged([sweep]).rows
    seconds, times = _seconds_of_stages(sweep, rows), _stages_left(sweep, sweep.plan.runs)
    finished = [sweep.run_folder(row.run) for row in rows if row.status == "done"]
    ahead = {stage: plan[stage] for stage in times if plan and stage in plan}
    planned = {stage: found["walltime_s"].value for stage, found in ahead.items()}
    seconds = {stage: value for stage, value in planned.items() if value is not None} | seconds
    on_disk = total(found["bytes_written"].times(times[stage]) for stage, found in ahead.items()).value
    memory = [value for found in ahead.values() if (value := found[VRAM].value) is not None]

    def hours(counts: Mapping[str, int]) -> float:
        """Return the hours of these stages, as far as their time is known."""
        return round(sum(count * seconds.get(stage, 0.0) for stage, count in counts.items()) / 3600, 3)

    of_parts = [part_of(sweep.plan.runs, sweep.plan.split_by, number, parts) for number in range(1, parts + 1)]
    return {
        "times_made": times,
        "seconds_once": {stage: round(seconds[stage], 1) for stage in times if stage in seconds},
        "hours_left": hours(times),
        "hours_left_of_slowest_part": max(hours(_stages_left(sweep, runs)) for runs in of_parts),
        "not_known": [stage for stage in times if stage not in seconds],
        "bytes_left": disk_use(finished[:1]).size_bytes * (len(rows) - len(finished)) if finished else on_disk,
        "gpu_bytes": max(memory, default=None),
    }


def _stages_left(sweep: SweepFolder, runs: Sequence[Run]) -> dict[str, int]:
    """Return how often each stage has still to run for these runs; shared stages count once."""
    left: list[str] = []
    for node in {node.folder: node for run in runs for node in run.nodes}.values():
        folder = sweep.folder(node)
        prepared = ExperimentLayout(folder).experiment_toml.exists()
        left += open_stages(load_experiment(folder), node) if prepared else node.stages
    return {stage: left.count(stage) for stage in STAGES if stage in left}


def _seconds_of_stages(sweep: SweepFolder, rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean seconds of each stage over the results of this sweep, otherwise those of the base."""
    base, found = ExperimentLayout(sweep.base_file.parent), dict[str, float]()
    for stage in STAGES:
        if values := [row.seconds[stage] for row in rows if stage in row.seconds]:
            found[stage] = statistics.fmean(values)
            continue
        try:
            seconds = read_manifest(base, stage).facts.get("seconds")
        except StageError:
            continue
        if seconds is not None and math.isfinite(seconds):
            found[stage] = float(seconds)
    return found
