"""`lsdflow run --on slurm`: submit, then tell what becomes of the jobs until the chain has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lsdflow_contract.errors import InternalError, Interrupted, MissingInput, OutputConflict, StoreUnreachable
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_launch.slurm.jobs import Submitted, Task, newest_submission, submitted_jobs, tasks_of
from lsdflow_launch.slurm.submit import submit

LOG = logging.getLogger("lsdflow.follow")
# SLURM keeps an ended job for five minutes by default, and asks not to be asked all the time.
ASK_EVERY_S = (5.0, 40.0)
PROGRESS_EVERY_S = 60.0
PATIENCE_S = 900.0
FORGOTTEN = "FORGOTTEN"
# An exit code of SLURM's own making, where the program gave none.
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
    """Submit, then follow the jobs until the last has ended; jobs that are in the queue already are followed instead.

    Returns the exit code of the chain. Raises what submit raises, StoreUnreachable (69) if SLURM stays silent.
    """
    if not waiting_jobs(experiment):
        code = submit(experiment, first, last)
        if code != 0:
            return code
    else:
        LOG.info("this experiment's jobs are in the queue: following them, nothing new is submitted")
    submission = newest_submission(experiment)
    if submission is None:
        raise MissingInput("the submission cannot be found", where=experiment.path.parent / "runs" / "submit")
    LOG.info("following %s; if this is interrupted the jobs go on (lsdflow status, lsdflow cancel)", submission.name)
    return Following(submitted_jobs(submission), progress).to_the_end()


def waiting_jobs(experiment: Experiment) -> list[Submitted]:
    """Jobs of the newest submission that wait or run."""
    submission = newest_submission(experiment)
    if submission is None:
        return []
    tasks = tasks_of(jobs := submitted_jobs(submission))
    ours = experiment.path.parent
    return [j for j in jobs if any(t.waits and t.state != "COMPLETING" and t.is_of(ours) for t in tasks[j.job])]


def refuse_if_queued(experiment: Experiment) -> None:
    """OutputConflict (73) while jobs of an earlier submission wait or run: a second chain would be in their way."""
    if found := waiting_jobs(experiment):
        raise OutputConflict(
            "this experiment's jobs are in the queue",
            found=", ".join(f"{job.stage} {job.role} {job.job}" for job in found[:4]),
            fix="lsdflow status; to begin anew: lsdflow cancel; more workers: lsdflow submit --only-workers",
        )


@dataclass
class Following:
    """The jobs of one submission, and what SLURM has told of them so far: it forgets ended jobs after some minutes."""

    jobs: Sequence[Submitted]
    progress: Progress | None = None
    ask: AskSlurm = tasks_of
    known: Tasks = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def to_the_end(self, sleep: Callable[[float], Any] = time.sleep) -> int:
        """Tell every change of state until nothing waits or runs. Returns the exit code of the chain.

        Raises StoreUnreachable (69) if SLURM gives no answer for a quarter of an hour.
        """
        pause, told_at, answered_at = ASK_EVERY_S[0], time.monotonic(), time.monotonic()
        while True:
            try:
                pause = ASK_EVERY_S[0] if self.look() else min(2 * pause, ASK_EVERY_S[1])
                answered_at = time.monotonic()
                if (code := chain_code(self.jobs, self.known)) is not None:
                    return code
            except StoreUnreachable as error:
                if time.monotonic() - answered_at > PATIENCE_S:
                    raise
                LOG.warning("%s; asking again", error.what)
            if time.monotonic() - told_at > PROGRESS_EVERY_S:
                told_at = time.monotonic()
                self._tell_progress()
            sleep(pause)

    def look(self) -> bool:
        """Ask SLURM once and tell what is new. Returns whether anything was."""
        now = self.ask(self.jobs)
        for job in self.jobs:
            self.known[job.job] = now.get(job.job) or _forgotten(self.known.get(job.job, []))
        changed = False
        for job in self.jobs:
            words = _words(self.known[job.job])
            if self._told.get(job.job) != words:
                changed = True
                self._told[job.job] = words
                if words != "PENDING":
                    LOG.info("%s %s: job %s %s", job.stage, job.role, job.job, words)
        return changed

    def _tell_progress(self) -> None:
        for job in self.jobs:
            running = any(t.state == "RUNNING" for t in self.known.get(job.job, []))
            if self.progress and running and job.role == "coordinator" and (text := self.progress(job.stage)):
                LOG.info("%s: %s", job.stage, text)


def chain_code(jobs: Sequence[Submitted], tasks: Tasks) -> int | None:
    """None while anything waits or runs; then 0 if every stage was verified, else the first other's exit code.

    Workers count for nothing in a stage that was verified: the blocks of a lost one were done by others.
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
    """'COMPLETED', or of an array '2 COMPLETED, 1 RUNNING'."""
    states = [t.state + (f" (exit code {t.code})" if t.code and not t.waits else "") for t in tasks]
    counts = {state: states.count(state) for state in sorted(states)}
    return ", ".join(state if len(states) == count else f"{count} {state}" for state, count in counts.items())


def _forgotten(before: Sequence[Task]) -> list[Task]:
    """What was last known; a job that vanished while it waited or ran has ended, nobody knows how."""
    return [replace(task, state=FORGOTTEN) if task.waits else task for task in before]
