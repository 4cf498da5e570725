"""A worker of another job: waits for the coordinator's notice, works for it in a process of its own, and waits again.

    wait for a notice ---> open round ---> worker process takes blocks ---> no more blocks: wait for the next round
          ^                                      |
          +---- coordinator lost, replaced, or the process died: look again
    "finished" ends the worker; nobody for compute.join_wait_s, or a signal, ends it with exit code 75

The blocks are done in a child process: it can be ended at once when the coordinator is replaced while the worker still
waits on a connection to a dead machine, and a crash or a block that runs into its time-out costs only the child.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from lsdflow_command.console import form_log_lines, start_logging
from lsdflow_command.interruption import leave_terminal_to_coordinator
from lsdflow_command.processes import end_with_parent
from lsdflow_command.stage import load_stage
from lsdflow_contract.errors import InternalError, Interrupted, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_runtime.daisy_runner import CONTEXT_VARIABLE, ROUND_VARIABLE, joined_context
from lsdflow_runtime.gate import read_key, way_in
from lsdflow_runtime.rendezvous import SUBMISSION_VARIABLE, Notice, NoticeBoard

LOG = logging.getLogger("lsdflow.worker")
POLL_SECONDS = 1.0
# A notice "finished" that was there before the worker may be of an earlier run, whose successor is just starting.
LINGER_SECONDS = 60.0
# A worker that found nothing to do looks again: the block of one that is lost without a word comes back late.
REJOIN_SECONDS = 30.0
# More than a single crashing block can cause (LOST_WORKER): then it is this machine that is at fault.
FAILURES_IN_A_ROW = 20


def join_coordinator(stage: str, experiment: Experiment) -> None:
    """Take blocks of a stage from its coordinators until the stage has nothing left to do.

    Raises Interrupted (75) if nobody came for compute.join_wait_s, InternalError if the worker process dies again and
    again.
    """
    _Worker(stage, experiment, NoticeBoard.of(stage, experiment)).run()


@dataclass
class _Worker:
    stage: str
    experiment: Experiment
    board: NoticeBoard
    started: float = field(default_factory=time.monotonic)
    contact: float = field(default_factory=time.monotonic)
    left: dict[str, float] = field(default_factory=dict)
    failures: int = 0

    def run(self) -> None:
        """Wait, take part, wait again, until there is nothing left to do. Raises as join_coordinator."""
        at_start = self._notice()
        while True:
            notice = self._notice()
            if notice is not None and notice.state == "finished" and not self._may_be_old(notice, at_start):
                LOG.info("%s: nothing left to do", self.stage)
                return
            if notice is not None and notice.state == "open" and notice.answers():
                self.contact = time.monotonic()
                if time.monotonic() - self.left.get(notice.round, -REJOIN_SECONDS) >= REJOIN_SECONDS:
                    self._work_for(notice)
                    continue
            self._wait()

    def _notice(self) -> Notice | None:
        """The notice, unless it belongs to another submission than this worker."""
        notice, ours = self.board.read(), os.environ.get(SUBMISSION_VARIABLE, "")
        return None if notice is not None and ours and notice.submission != ours else notice

    def _may_be_old(self, notice: Notice, at_start: Notice | None) -> bool:
        known = bool(os.environ.get(SUBMISSION_VARIABLE))
        return not known and notice == at_start and time.monotonic() - self.started < LINGER_SECONDS

    def _wait(self) -> None:
        patience = self.experiment.compute.join_wait_s
        if time.monotonic() - self.contact > patience:
            raise Interrupted(
                f"no coordinator of {self.stage} answered for {patience:.0f} s",
                where=self.board.folder / "join.json",
                hint=f"start it: {self.stage} run --set compute.runner=cluster",
            )
        time.sleep(POLL_SECONDS)

    def _work_for(self, notice: Notice) -> None:
        """Let a child process take blocks until it ends or the notice is replaced."""
        LOG.info("%s: joining the coordinator at %s:%d", self.stage, notice.host, notice.port)
        child = multiprocessing.get_context("spawn").Process(
            target=_take_part, args=(self.stage, str(self.experiment.path), notice, str(self.board.folder)), daemon=True
        )
        child.start()
        try:
            self._watch(child, notice)
        finally:
            child.kill()
            child.join()
        self.contact = time.monotonic()
        self._judge(child, notice)

    def _watch(self, child: BaseProcess, notice: Notice) -> None:
        while child.is_alive():
            child.join(POLL_SECONDS)
            now = self._notice()
            if now is None or (now.state, now.round) != ("open", notice.round):
                child.join(2 * POLL_SECONDS)
                return

    def _judge(self, child: BaseProcess, notice: Notice) -> None:
        if child.exitcode == 0:
            self.left[notice.round] = time.monotonic()
        if child.exitcode == 0 or not notice.answers():
            self.failures = 0
            return
        self.failures += 1
        LOG.warning("%s: the worker process ended with code %s", self.stage, child.exitcode)
        if self.failures >= FAILURES_IN_A_ROW:
            raise InternalError(
                f"the worker process died {self.failures} times in a row",
                where=os.uname().nodename,
                found=f"exit code {child.exitcode}",
                hint="the lines above tell why; the blocks are left to other workers",
            )
        time.sleep(POLL_SECONDS)


def _take_part(stage: str, experiment: str, notice: Notice, folder: str) -> None:
    """Body of the child: the stage's worker function for one round."""
    end_with_parent()
    leave_terminal_to_coordinator()
    start_logging()
    round_folder = NoticeBoard(Path(folder)).round_folder(notice.round)
    os.environ[ROUND_VARIABLE] = str(round_folder)
    try:
        key = read_key(round_folder)
    except FileNotFoundError:
        # No fault of this machine: the coordinator has handed out all blocks, and has not said yet what comes next.
        LOG.info("%s: this round is over", stage)
        return
    try:
        with way_in(notice.host, notice.port, key) as port:
            os.environ[CONTEXT_VARIABLE] = joined_context(notice.context, os.getpid(), port)
            loaded = load_experiment(Path(experiment), notice.overrides)
            form_log_lines(loaded.compute.log_format, stage)
            load_stage(stage).worker(loaded)
    except StageError as error:
        LOG.error("error: %s", error.message())
        sys.exit(error.exit_code)
    except (RuntimeError, ConnectionError) as error:
        LOG.warning("the connection to the coordinator was lost: %s", error)
        sys.exit(Interrupted.exit_code)
