"""`lsdflow run --backend slurm`: submits the jobs, then report their states until the chain has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lsdflow_contract.errors import InternalError, Interrupted, MissingInput, StoreUnreachable
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_launch.slurm.jobs import Submitted, Task, newest_submission, submitted_jobs, tasks_of, waiting_jobs
from lsdflow_launch.slurm.submit import submit_chain

LOG = logging.getLogger("lsdflow.follow")
# SLURM keeps an ended job for five minutes by default, and frequent queries would load it.
ASK_EVERY_S = (5.0, 40.0)
PROGRESS_EVERY_S = 60.0
PATIENCE_S = 900.0
UNKNOWN_STATE = "FORGOTTEN"
# Exit codes for states that SLURM sets itself, without one from the program.
CODE_OF_STATE = {"CANCELLED": Interrupted.exit_code, "TIMEOUT": Interrupted.exit_code}
ROLES = ("run", "coordinator", "verify", "workers")

Tasks = dict[str, list[Task]]
Progress = Callable[[str], str]
AskSlurm = Callable[[Sequence[Submitted]], Tasks]


def run_on_slurm(
    experiment: Experiment,
    first: str = STAGES[0],
    last: str = STAGES[-1],
    progress: Progress | None = None,
) -> int:
    """Submit, then follow the jobs until the last has ended; if jobs are already in the queue, follow those instead.

    Returns the exit code of the chain. Raises its errors, and StoreUnreachable (69) if SLURM does not answer.
    """
    if not waiting_jobs(experiment):
        code = submit_chain(experiment, first, last)
        if code != 0:
            return code
    else:
        LOG.info("this experiment's jobs are in the queue: following them, nothing new is submitted")
    submission = newest_submission(experiment)
    if submission is None:
        raise MissingInput("the submission cannot be found", where=experiment.path.parent / "runs" / "submit")
    LOG.info(
        "following %s; if this is interrupted, the jobs continue (lsdflow status, lsdflow cancel)", submission.name
    )
    return Following(submitted_jobs(submission), progress).to_the_end()


@dataclass
class Following:
    """The jobs of one submission and their last known states; SLURM drops ended jobs after some minutes."""

    jobs: Sequence[Submitted]
    progress: Progress | None = None
    ask: AskSlurm = tasks_of
    known: Tasks = field(default_factory=dict)
    _reported: dict[str, str] = field(default_factory=dict)

    def to_the_end(self, sleep: Callable[[float], Any] = time.sleep) -> int:
        """Report every change of state until no job waits or runs. Returns the exit code of the chain.

        Raises StoreUnreachable (69) if SLURM does not answer for a quarter of an hour.
        """
        pause, progress_at, answered_at = ASK_EVERY_S[0], time.monotonic(), time.monotonic()
        while True:
            try:
                pause = ASK_EVERY_S[0] if self.update() else min(2 * pause, ASK_EVERY_S[1])
                answered_at = time.monotonic()
                if (code := chain_code(self.jobs, self.known)) is not None:
                    return code
            except StoreUnreachable as error:
                if time.monotonic() - answered_at > PATIENCE_S:
                    raise
                LOG.warning("%s; asking again", error.what)
            if time.monotonic() - progress_at > PROGRESS_EVERY_S:
                progress_at = time.monotonic()
                self._log_progress()
            sleep(pause)

    def update(self) -> bool:
        """Query SLURM once and report what is new. Returns True if anything was."""
        now = self.ask(self.jobs)
        for job in self.jobs:
            self.known[job.job] = now.get(job.job) or _last_known(self.known.get(job.job, []))
        changed = False
        for job in self.jobs:
            words = _words(self.known[job.job])
            if self._reported.get(job.job) != words:
                changed = True
                self._reported[job.job] = words
                if words != "PENDING":
                    LOG.info("%s %s: job %s %s", job.stage, job.role, job.job, words)
        return changed

    def _log_progress(self) -> None:
        for job in self.jobs:
            running = any(t.state == "RUNNING" for t in self.known.get(job.job, []))
            if self.progress and running and job.role == "coordinator" and (text := self.progress(job.stage)):
                LOG.info("%s: %s", job.stage, text)


def chain_code(jobs: Sequence[Submitted], tasks: Tasks) -> int | None:
    """Return None while a job waits or runs, 0 if every stage was verified, else the exit code of the first other one.

    Failed workers do not matter in a verified stage: other workers computed their blocks.
    """
    if any(task.waits for job in jobs for task in tasks.get(job.job, [])):
        return None
    for stage in dict.fromkeys(job.stage for job in jobs):
        of_stage = sorted((j for j in jobs if j.stage == stage), key=lambda j: ROLES.index(j.role))
        verified = [t.state for j in of_stage if j.role == "verify" for t in tasks.get(j.job, [])]
        if verified != ["COMPLETED"]:
            return _code_of(stage, [t for j in of_stage for t in tasks.get(j.job, [])])
    return 0


def _code_of(stage: str, tasks: Sequence[Task]) -> int:
    ended_by_itself = (t.code for t in tasks if t.code and t.state != "CANCELLED")
    by_slurm = (CODE_OF_STATE[t.state] for t in tasks if t.state in CODE_OF_STATE)
    code = next(ended_by_itself, None) or next(by_slurm, InternalError.exit_code)
    LOG.error("%s ended with exit code %d (%s)", stage, code, _words(tasks) or "not known to SLURM any more")
    return code


def _words(tasks: Sequence[Task]) -> str:
    """Return 'COMPLETED', or for an array '2 COMPLETED, 1 RUNNING'."""
    states = [t.state + (f" (exit code {t.code})" if t.code and not t.waits else "") for t in tasks]
    counts = {state: states.count(state) for state in sorted(states)}
    return ", ".join(state if len(states) == count else f"{count} {state}" for state, count in counts.items())


def _last_known(before: Sequence[Task]) -> list[Task]:
    """Return the last known tasks; one that vanished while it waited or ran has ended with an unknown result."""
    return [replace(task, state=UNKNOWN_STATE) if task.waits else task for task in before]
