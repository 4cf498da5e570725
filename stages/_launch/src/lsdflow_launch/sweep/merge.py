"""Merge the results of all runs of a sweep: one row per run, means over seeds or folds, missing runs marked.

Only result.json and the claim of every run are read, from one folder or several (servers without shared storage).
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lsdflow_command.lock_file import Holder
from lsdflow_contract.errors import ContractMismatch
from lsdflow_launch.sweep.claim import claim_of
from lsdflow_launch.sweep.folder import SweepFolder, SweepPlan
from lsdflow_launch.sweep.result import RunResult, read_result
from lsdflow_launch.sweep.tree import PlannedRun

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
    def scores(self) -> dict[str, float]:
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
        results = [result for folder, r in found if (result := read_result(folder.result_path(r))) is not None]
        workers = [
            worker for folder, r in found if (worker := claim_of(folder.run_folder(r)).live_holder()) is not None
        ]
        rows.append(Row(run, _best_of(results), next(iter(workers), None)))
    return Merged(first.plan, tuple(rows))


def _best_of(results: Sequence[RunResult]) -> RunResult | None:
    done = [result for result in results if result.status == "done"]
    if any(not _same(result.scores, done[0].scores) for result in done[1:]):
        LOG.warning("warning: %s was made twice, with different scores; the first folder counts", done[0].run)
    return next(iter([*done, *sorted(results, key=lambda result: -result.ended)]), None)


def _same(a: dict[str, float], b: dict[str, float]) -> bool:
    return a.keys() == b.keys() and all(math.isclose(a[name], b[name], rel_tol=1e-9) for name in a)
