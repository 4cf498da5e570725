"""The report while a run goes on: written by `evaluate report` in a process of its own, which counts nothing.

`kept_up_to_date` is around a run: the report is written again and again, at low priority, and browsers load it again.
Nothing depends on it: a report that cannot be written is told once, and the run goes on.
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
# A report that takes longer is given up.
MOST_S = 600.0
NICENESS = 10


def report_arguments(experiment: Experiment, refresh_s: float | None = None) -> list[str]:
    """The arguments of `evaluate` that write the report of an experiment."""
    overrides = [word for override in experiment.overrides for word in ("--set", override)]
    refresh = ["--refresh", str(max(1, round(refresh_s)))] if refresh_s else []
    return [VERB, "--experiment", str(experiment.path), *overrides, *refresh]


def report_now(experiment: Experiment, refresh_s: float | None = None) -> int:
    """Write the report; the exit code of the command."""
    return run_stage(WRITER, report_arguments(experiment, refresh_s))


def watch(experiment: Experiment, every_s: float, wait: Callable[[float], object]) -> None:
    """Write the report again and again, until `wait` is interrupted; then once more, for browsers that stay."""
    with contextlib.suppress(KeyboardInterrupt):
        # Ctrl-C while a report is written ends that one with 75.
        while report_now(experiment, every_s) != Interrupted.exit_code:
            wait(every_s)
    report_now(experiment)


@contextlib.contextmanager
def kept_up_to_date(experiment: Experiment, every_s: float = EVERY_S) -> Iterator[None]:
    """Around a run: the report every `every_s` seconds; and once after it, if there was time for the first."""
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
        """Have the report written; False if it cannot be, which is told."""
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
