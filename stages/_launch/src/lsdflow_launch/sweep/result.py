"""How far a run of a sweep is, from the files of its experiment; and its lock while a process computes it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_command.lock_file import Holder, LockFile
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.experiment import STAGES, Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_launch.chain import LAST, STOPPED
from lsdflow_launch.status import newest_run, outcome_of
from lsdflow_launch.sweep.folder import PlannedRun, SweepFolder, open_stages

LOG = logging.getLogger("lsdflow.sweep")
# As a shell reports a process that SIGKILL has ended.
KILLED_CODE = 128 + signal.SIGKILL
KILLED = "ended without an outcome: it was killed, or its machine failed"


class AtWorkElsewhere(OutputConflict):
    """Another process works on the run."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of an experiment within the `with` block. AtWorkElsewhere (73) if a process works on it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(experiment_lock(ExperimentLayout(folder)))
        except OutputConflict as error:
            raise AtWorkElsewhere(error.what, where=error.where, found=error.found, fix=error.fix) from error
        yield


def worker_of(folder: Path, stage: str = "") -> Holder | None:
    """Return the process that works on an experiment, or on its `stage`; None if there is none."""
    runs = folder / "runs"
    locks = (LockFile(path / "lock") for path in (runs, *([runs / stage] if stage else [])))
    return next(filter(None, (lock.live_holder() for lock in locks)), None)


@dataclass(frozen=True)
class RunResult:
    """How a run ended; error: what the failed stage reported; scores: the numbers of report/scores.json.

    report: its page, which exists if the run is done.
    """

    status: Literal["done", "failed"]
    exit_code: int = 0
    failed_stage: str = ""
    error: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    host: str = ""
    started: float = 0.0


def result_of(sweep: SweepFolder, run: PlannedRun) -> RunResult | None:
    """Return how a run ended; None if it was not begun, was stopped by the user, or is running.

    A run is done once its last stage has finished; the shared stages were finished before it began. It has failed if
    its scores or a manifest are lost or damaged since. Raises ContractMismatch (76).
    """
    folder = sweep.run_folder(run)
    layout = ExperimentLayout(folder)
    if layout.manifest(LAST).exists():
        last = _where(_outcome(load_experiment(folder), LAST))
        try:
            seconds = {s: _seconds(layout, s) for s in STAGES if layout.manifest(s).exists()}
            page = layout.report / "index.html"
            return RunResult("done", scores=scores_of(layout), seconds=seconds, report=page, **last)
        except (BadData, MissingInput) as error:
            named = {"what": f"{Path(error.where).name}: {error.what}"}
            return RunResult("failed", error.exit_code, LAST, error=error.as_dict() | named, **last)
    for node in run.nodes:
        # A sweep that is not prepared has no folders, and a copy of its folders may have no base.
        if ExperimentLayout(sweep.folder(node)).experiment_toml.exists():
            experiment = load_experiment(sweep.folder(node))
            for stage in open_stages(experiment, node)[:1]:
                return _failure(experiment, stage)
    return None


def _failure(experiment: Experiment, stage: str) -> RunResult | None:
    """Return how the newest run of an unfinished stage failed; None if it was stopped, is running, or has not begun."""
    outcome = _outcome(experiment, stage)
    if outcome:
        code = int(outcome.get("exit_code", 0))
        if code in (0, *STOPPED):
            return None
        return RunResult("failed", code, stage, error=outcome.get("error") or {}, **_where(outcome))
    if newest_run(experiment, stage) is None:
        return None
    running = worker_of(experiment.path.parent, stage) is not None
    return None if running else RunResult("failed", KILLED_CODE, stage, error={"what": KILLED})


def _outcome(experiment: Experiment, stage: str) -> dict[str, Any]:
    return outcome_of(newest_run(experiment, stage, refused=True))


def _where(outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {"host": str(outcome.get("host", "")), "started": float(outcome.get("started") or 0.0)}


def _seconds(layout: ExperimentLayout, stage: str) -> float:
    return float(read_manifest(layout, stage).facts.get("seconds", 0.0))


def scores_of(layout: ExperimentLayout) -> dict[str, float]:
    """Return the numbers of report/scores.json. MissingInput (66) or BadData (65) if it is lost or damaged."""
    found = read_sealed(layout.report / "scores.json", f"evaluate run --experiment {layout.root}")
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
