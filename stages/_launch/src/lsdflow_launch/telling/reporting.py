"""The report during a run, written by `evaluate report` in a separate process that computes no scores.

Within `kept_up_to_date` the report is written repeatedly at low priority, and browsers reload it. The run does not
depend on it: a report that cannot be written is logged once, and the run continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

from lsdflow_contract.errors import Interrupted, StageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_launch.commands import run_stage, stage_command

LOG = logging.getLogger("lsdflow.run")
WRITER = STAGES[-1]
VERB = "report"
EVERY_S = 60.0
# A report that takes longer is stopped.
MOST_S = 600.0
NICENESS = 10


def report_arguments(experiment: Experiment, refresh_s: float | None = None) -> list[str]:
    """Return the arguments of `evaluate` that write the report of an experiment."""
    overrides = [word for override in experiment.overrides for word in ("--set", override)]
    refresh = ["--refresh", str(max(1, round(refresh_s)))] if refresh_s else []
    return [VERB, "--experiment", str(experiment.path), *overrides, *refresh]


def report_now(experiment: Experiment, refresh_s: float | None = None) -> int:
    """Write the report; return the exit code of the command."""
    return run_stage(WRITER, report_arguments(experiment, refresh_s))


def watch(experiment: Experiment, every_s: float, wait: Callable[[float], object]) -> None:
    """Write the report repeatedly until `wait` is interrupted, then once more without the reload of browsers."""
    with contextlib.suppress(KeyboardInterrupt):
        # Ctrl-C while a report is written ends its process with exit code 75.
        while report_now(experiment, every_s) != Interrupted.exit_code:
            wait(every_s)
    report_now(experiment)


@contextlib.contextmanager
def kept_up_to_date(experiment: Experiment, every_s: float = EVERY_S) -> Iterator[None]:
    """Write the report every `every_s` seconds during a run; and once after it, if the last report was written."""
    keeper = _Keeper(experiment, every_s)
    keeper.thread.start()
    try:
        yield
    finally:
        keeper.stop.set()
        keeper.thread.join()
        if keeper.written:
            keeper.write(report_arguments(experiment))


class _Keeper:
    def __init__(self, experiment: Experiment, every_s: float) -> None:
        self.experiment, self.every_s = experiment, every_s
        self.stop, self.written = threading.Event(), False
        self.thread = threading.Thread(target=self._keep, name="report", daemon=True)

    def _keep(self) -> None:
        while not self.stop.wait(self.every_s):
            self.written = self.write(report_arguments(self.experiment, self.every_s))
            if not self.written:
                return

    def write(self, arguments: Sequence[str]) -> bool:
        """Write the report in a subprocess; False, with a log message, if it cannot be written."""
        try:
            command = [str(stage_command(WRITER)), *arguments]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
                try:
                    child.wait(MOST_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    raise
        except (StageError, OSError, subprocess.TimeoutExpired) as error:
            LOG.info("no report while the run goes on: %s", error)
            return False
        return True
