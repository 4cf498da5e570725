"""The jobs of a submission, as SLURM reports them.

runs/submit/<time>-<pid>/jobs.tsv     stage, role, job number, time: one line per job (an array is one job)
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import MissingInput, OutputConflict, StageError, StoreUnreachable
from lsdflow_contract.experiment import Experiment

FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "TimeUsed", "RestartCnt", "exit_code", "WorkDir")
WAITING = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "RESIZING")
LISTED = 10
# Partition (a star marks the default one), state, nodes, time limit, generic resources of a node.
PARTITION_FORMAT = "%P|%a|%D|%l|%G"
SINFO_LIMIT_S = 15.0


@dataclass(frozen=True)
class Submitted:
    """One line of jobs.tsv."""

    stage: str
    role: str
    job: str


@dataclass(frozen=True)
class Task:
    """A job, or a task of an array, as SLURM reports it; `code` is its exit code if it has ended by itself."""

    job: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    code: int = 0
    folder: str = ""

    @property
    def waits(self) -> bool:
        """True while it is in the queue or running."""
        return self.state in WAITING

    def is_of(self, experiment: Path) -> bool:
        """Return False if the job number now belongs to something else."""
        return Path(self.folder) == experiment


@dataclass(frozen=True)
class Partition:
    """A partition of SLURM. sinfo reports nodes with different GPUs separately; they are joined here."""

    name: str
    state: str
    nodes: int
    time_limit: str
    has_gpu: bool


def existing_partitions() -> dict[str, Partition]:
    """Return all partitions by name. Raises MissingInput (66) without SLURM, StoreUnreachable (69) without answer."""
    found: dict[str, Partition] = {}
    for line in ask_slurm(["sinfo", "--noheader", f"--format={PARTITION_FORMAT}"], SINFO_LIMIT_S).splitlines():
        if line.count("|") != 4:
            continue
        name, state, nodes, limit, resources = line.strip().split("|")
        name = name.rstrip("*")
        before = found.get(name, Partition(name, state, 0, limit, has_gpu=False))
        has_gpu = before.has_gpu or "gpu" in resources
        found[name] = Partition(name, state, before.nodes + int(nodes), limit, has_gpu)
    return found


def newest_submission(experiment: Experiment) -> Path | None:
    """Return the folder of the newest submission, or None."""
    folders = [p for p in (experiment.path.parent / "runs" / "submit").glob("*") if (p / "jobs.tsv").is_file()]
    return max(folders, key=lambda p: p.name, default=None)


def submitted_jobs(submission: Path) -> list[Submitted]:
    """Return the jobs of a submission, in the order they were submitted."""
    rows = [line.split("\t") for line in (submission / "jobs.tsv").read_text().splitlines()]
    return [Submitted(row[0], row[1], row[2]) for row in rows if len(row) >= 3 and row[2].isdigit()]


def submitted_overrides(submission: Path) -> list[str]:
    """Return the overrides of the experiment file that were used for a submission."""
    lines = (submission / "settings.env").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("SET='").removesuffix("'") for line in lines if line.startswith("SET='")]


def ask_slurm(command: Sequence[str], limit_s: float | None = None) -> str:
    """Return the output of a SLURM command, which must answer within `limit_s` (None: no limit).

    Raises MissingInput (66) if it is not installed, StoreUnreachable (69) if SLURM does not answer.
    """
    if shutil.which(command[0]) is None:
        raise MissingInput(f"no {command[0]} here", fix="run this on a login node of the cluster")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        found = f"no answer within {limit_s:.0f} s"
        raise StoreUnreachable(f"{command[0]} does not answer", found=found, fix="try again later") from error
    if done.returncode == 0:
        return done.stdout
    if "Invalid job id" in done.stderr:
        return ""
    raise StoreUnreachable(f"{command[0]} does not answer", found=done.stderr.strip()[-500:], fix="try again later")


def tasks_of(jobs: Sequence[Submitted]) -> dict[str, list[Task]]:
    """Return all tasks by job number: from squeue; for jobs that it no longer knows from sacct, if installed."""
    if not jobs:
        return {}
    numbers = [j.job for j in jobs]
    form = ",".join(f"{field}:|" for field in FIELDS)
    output = ask_slurm(["squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", f"--Format={form}"])
    found: dict[str, list[Task]] = {number: [] for number in numbers}
    for task in filter(None, map(_task_of_line, output.splitlines())):
        found.setdefault(task.job, []).append(task)
    missing = [number for number in numbers if not found[number]]
    for task in _from_accounting(missing):
        found.setdefault(task.job, []).append(task)
    return found


def waiting_jobs(experiment: Experiment) -> list[Submitted]:
    """Return the jobs of the newest submission that wait or run."""
    submission = newest_submission(experiment)
    if submission is None:
        return []
    tasks = tasks_of(jobs := submitted_jobs(submission))
    folder = experiment.path.parent
    return [j for j in jobs if any(t.waits and t.state != "COMPLETING" and t.is_of(folder) for t in tasks[j.job])]


def refuse_if_queued(experiment: Experiment) -> None:
    """Raise OutputConflict (73) while jobs of an earlier submission wait or run; a second chain would conflict."""
    if found := waiting_jobs(experiment):
        raise OutputConflict(
            "this experiment's jobs are in the queue",
            found=", ".join(f"{job.stage} {job.role} {job.job}" for job in found[:4]),
            fix="lsdflow status; to start again: lsdflow cancel; more workers: lsdflow scale DIR STAGE=N",
        )


def refuse_if_known_to_be_queued(experiment: Experiment) -> None:
    """As refuse_if_queued, but without SLURM, or if it does not answer, nothing is refused: its jobs check again."""
    with suppress(MissingInput, StoreUnreachable):
        refuse_if_queued(experiment)


def _task_of_line(line: str) -> Task | None:
    parts = line.split("|")
    if len(parts) < len(FIELDS):
        return None
    name, state, reason, nodes, _used, restarts, code, folder = (part.strip() for part in parts[: len(FIELDS)])
    job = re.match(r"\d+", name)
    if job is None:
        return None
    # The code has the form of wait(2): the exit code is in the second byte.
    code_number = int(code) >> 8 if code.isdigit() else 0
    restarts_number = int(restarts) if restarts.isdigit() else 0
    return Task(job[0], name, state, "" if reason == "None" else reason, nodes, restarts_number, code_number, folder)


def _from_accounting(numbers: Sequence[str]) -> Iterator[Task]:
    if not numbers or shutil.which("sacct") is None:
        return
    try:
        output = ask_slurm(
            ["sacct", "-X", "-n", "-P", "-j", ",".join(numbers), "-o", "JobID,State,NodeList,ExitCode,WorkDir"]
        )
    except StageError:
        return
    for line in output.splitlines():
        name, state, nodes, code, folder = (line.split("|") + [""] * 5)[:5]
        if job := re.match(r"\d+", name):
            first = code.partition(":")[0]
            word = state.split(" ")[0].rstrip("+")
            yield Task(job[0], name, word, "", nodes, 0, int(first) if first.isdigit() else 0, folder)


def job_facts(experiment: Experiment, submission: Path) -> dict[str, dict[str, Any]]:
    """Return, by stage of a submission, its jobs by role, and the logs of those that failed.

    Raises MissingInput (66) or StoreUnreachable (69) as ask_slurm does.
    """
    jobs = submitted_jobs(submission)
    tasks = tasks_of(jobs)
    facts: dict[str, dict[str, Any]] = {}
    for job in jobs:
        of_stage = facts.setdefault(job.stage, {})
        text = _job_text(job.job, tasks.get(job.job, []))
        of_stage[job.role] = f"{of_stage[job.role]}; {text}" if job.role in of_stage else text
    for stage, of_stage in facts.items():
        bad = [t for j in jobs if j.stage == stage for t in tasks.get(j.job, []) if not t.waits and t.code]
        if bad:
            of_stage["logs"] = _logs_of(experiment, stage, bad)
    return facts


def _job_text(job: str, tasks: Sequence[Task]) -> str:
    """Return '12 RUNNING on n1, restarts 1', or for an array '13: 2 RUNNING on n1 n2, 6 PENDING (Resources)'."""
    if not tasks:
        return f"{job} not known to SLURM any more"
    words = []
    for state, reason in dict.fromkeys((t.state, t.reason) for t in tasks):
        same = [t for t in tasks if (t.state, t.reason) == (state, reason)]
        nodes = " ".join(sorted({t.nodes for t in same if t.nodes}))
        restarts, codes = sum(t.restarts for t in same), sorted({t.code for t in same if t.code})
        words.append(
            (f"{len(same)} " if len(tasks) > 1 else "")
            + state
            + (f" ({reason})" if reason and state == "PENDING" else "")
            + (f" on {nodes}" if nodes else "")
            + (f" exit code {', '.join(map(str, codes))}" if codes else "")
            + (f" restarts {restarts}" if restarts else "")
        )
    return f"{job}{':' if len(tasks) > 1 else ''} {', '.join(words)}"


def slurm_logs(experiment: Experiment, stage: str) -> list[Path]:
    """Return the logs of a stage's jobs, the newest first."""
    logs = (experiment.layout.stage_runs(stage) / "slurm").glob("*.log")
    return sorted(logs, key=lambda p: p.stat().st_mtime, reverse=True)


def _logs_of(experiment: Experiment, stage: str, tasks: Sequence[Task]) -> list[str]:
    logs = {log.name: log for log in slurm_logs(experiment, stage)}
    wanted = [next((str(p) for n, p in logs.items() if n.endswith(f".{t.name}.log")), "") for t in tasks[:LISTED]]
    return [path for path in wanted if path]


def cancel_submission(experiment: Experiment) -> list[str]:
    """Cancel every job of the newest submission that still waits or runs; return one line for each.

    A job number that now belongs to something else (its working folder is not the experiment) is skipped.
    Raises MissingInput (66) if nothing was submitted, and the errors of ask_slurm.
    """
    submission = newest_submission(experiment)
    if submission is None:
        raise MissingInput(
            "nothing was submitted", where=experiment.path.parent / "runs" / "submit", fix="lsdflow submit"
        )
    lines = []
    tasks = tasks_of(jobs := submitted_jobs(submission))
    # The last jobs first, so that no job starts because the one it waits for was cancelled.
    for job in reversed(jobs):
        waiting = [t for t in tasks.get(job.job, []) if t.waits]
        if waiting and all(t.is_of(experiment.path.parent) for t in waiting):
            ask_slurm(["scancel", job.job])
            lines.append(f"{job.stage} {job.role}: job {job.job} cancelled ({waiting[0].state})")
        elif waiting:
            lines.append(f"{job.stage} {job.role}: job {job.job} belongs to something else: {waiting[0].folder}")
    return lines or [f"nothing of {submission.name} waits or runs"]
