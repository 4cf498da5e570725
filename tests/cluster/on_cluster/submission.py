"""A submitted experiment: its jobs, the logs they wrote, the blocks that are done, and what became of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
from cluster import ENDED, Cluster, Job, wait_until
from experiments import database_of

# Collections of done marks, as in the store's description (stages/_runtime).
DONE = {
    "predict": "blocks_predicted",
    "watershed": "blocks_extracted",
    "agglomerate": "blocks_agglomerated",
    "segment": "blocks_segmented",
    "evaluate": "blocks_evaluated",
}


@dataclass(frozen=True)
class Submission:
    """The newest submission of an experiment."""

    cluster: Cluster
    experiment: Path
    folder: Path
    database: str

    @classmethod
    def of(cls, cluster: Cluster, experiment: Path) -> Submission:
        """Read what `lsdflow submit` left behind."""
        newest = max((experiment / "runs" / "submit").iterdir())
        return cls(cluster, experiment, newest, database_of(cluster, experiment.name))

    def rows(self) -> list[list[str]]:
        """Stage, role, job number of every job, in the order of submission."""
        return [line.split("\t")[:3] for line in (self.folder / "jobs.tsv").read_text().splitlines()]

    def number(self, stage: str, role: str) -> str:
        """The job number of a role: run, coordinator, workers or verify."""
        return next(number for s, r, number in self.rows() if (s, r) == (stage, role))

    def jobs(self) -> list[Job]:
        """All jobs as the queue knows them."""
        return self.cluster.jobs([number for _, _, number in self.rows()])

    def job(self, stage: str, role: str) -> Job:
        """The job of a role that is no array."""
        return self.cluster.jobs([self.number(stage, role)])[0]

    def wait_for_end(self, seconds: float) -> dict[tuple[str, str], set[str]]:
        """Wait until every job has ended; (stage, role) -> states. AssertionError with the logs if they do not end."""
        try:
            wait_until("all jobs ended", lambda: all(job.state in ENDED for job in self.jobs()), seconds, every=1.0)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.story()}") from None
        return self.states()

    def states(self) -> dict[tuple[str, str], set[str]]:
        """(stage, role) -> states of its job or array tasks."""
        roles = {number: (stage, role) for stage, role, number in self.rows()}
        found: dict[tuple[str, str], set[str]] = {}
        for job in self.jobs():
            found.setdefault(roles[job.number], set()).add(job.state)
        return found

    def assert_completed(self, seconds: float) -> None:
        """Every job but workers ended well; workers may have been cancelled by the verify job as left over."""
        states = self.wait_for_end(seconds)
        wrong = {
            key: found
            for key, found in states.items()
            if not found <= ({"COMPLETED", "CANCELLED"} if key[1] == "workers" else {"COMPLETED"})
        }
        assert not wrong, f"{wrong}\n{self.story()}"

    def exit_code(self, stage: str, role: str) -> int:
        """The exit code of a job's script."""
        output = self.cluster.run("scontrol", "show", "job", self.number(stage, role)).stdout
        return int(re.findall(r"ExitCode=(\d+):", output)[0])

    def log(self, stage: str, role: str) -> str:
        """What a role's jobs wrote, all restarts and array tasks."""
        number = self.number(stage, role)
        folder = self.experiment / "runs" / stage / "slurm"
        return "".join(p.read_text() for p in sorted(folder.glob(f"*.{number}*.log")))

    def story(self) -> str:
        """The states of all jobs and the last lines of the logs of those that did not end well."""
        parts = [str(job) for job in self.jobs()]
        for (stage, role), states in self.states().items():
            if states - {"COMPLETED", "PENDING"}:
                parts.append(f"--- {stage} {role}\n{self.log(stage, role)[-3000:]}")
        return "\n".join(parts)

    def blocks_done(self, stage: str) -> int:
        """How many blocks of a stage have their done mark in the database."""
        return self._marks(stage).count_documents({})

    def records(self, stage: str) -> list[Mapping[str, Any]]:
        """The records of the done marks: host, job, checksums."""
        return [mark["record"] for mark in self._marks(stage).find({}, {"record": 1})]

    def wait_for_blocks(self, stage: str, least: int, seconds: float = 600) -> int:
        """Wait until some blocks are done; how many."""
        wait_until(f"{least} blocks of {stage}", lambda: self.blocks_done(stage) >= least, seconds, every=0.1)
        return self.blocks_done(stage)

    def hosts(self, stage: str) -> set[str]:
        """Nodes that did blocks of a stage."""
        return {record["host"] for record in self.records(stage)}

    def working_hosts(self, stage: str) -> Sequence[str]:
        """Nodes on which workers of a stage run now."""
        return [job.node for job in self.cluster.jobs([self.number(stage, "workers")]) if job.state == "RUNNING"]

    def _marks(self, stage: str) -> pymongo.collection.Collection:
        return _client(self.cluster.uri_file)[self.database][DONE[stage]]


_CLIENTS: dict[Path, pymongo.MongoClient] = {}


def _client(uri_file: Path) -> pymongo.MongoClient:
    if uri_file not in _CLIENTS:
        _CLIENTS[uri_file] = pymongo.MongoClient(uri_file.read_text().strip())
    return _CLIENTS[uri_file]
