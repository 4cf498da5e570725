"""The cluster that the tests run on: its user, its shared storage, its queue, and the faults that can be made on it.

The project's own bed (../bed) by default. On a machine with a SLURM of its own, these variables say what to use:
LSDFLOW_CLUSTER_USER (default: who runs the tests), LSDFLOW_CLUSTER_SHARED (a folder of that user on shared storage),
LSDFLOW_CLUSTER_MONGO_URI_FILE (mode 0600, that user's), LSDFLOW_CLUSTER_SIF_DIR.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
BED = REPOSITORY / "tests" / "cluster" / "bed" / "bed.sh"
BED_STATE = Path(os.environ.get("LSDFLOW_BED", "/var/tmp/lsdflow-bed"))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"}


@dataclass(frozen=True)
class Job:
    """A row of squeue; `task` is the array index or "". `restarts` counts requeues."""

    number: str
    task: str
    name: str
    state: str
    reason: str
    node: str
    restarts: int

    @property
    def id(self) -> str:
        """What scancel and scontrol take."""
        return f"{self.number}_{self.task}" if self.task else self.number


@dataclass(frozen=True)
class Cluster:
    """Who submits, where shared storage is, and whether nodes may be crashed."""

    user: str
    shared: Path
    sif_folder: Path
    uri_file: Path
    own_bed: bool

    @classmethod
    def found(cls) -> Cluster:
        """The running cluster: the bed of this machine, or the machine's own SLURM by the variables above."""
        own = (BED_STATE / "run" / "slurmctld").exists()
        user = os.environ.get("LSDFLOW_CLUSTER_USER", "alice" if own else pwd.getpwuid(os.geteuid()).pw_name)
        home = Path(pwd.getpwnam(user).pw_dir)
        shared = Path(os.environ.get("LSDFLOW_CLUSTER_SHARED", f"/shared/{user}"))
        return cls(
            user=user,
            shared=shared,
            sif_folder=Path(os.environ.get("LSDFLOW_CLUSTER_SIF_DIR", shared.parent / "images")),
            uri_file=Path(os.environ.get("LSDFLOW_CLUSTER_MONGO_URI_FILE", home / ".lsdflow" / "mongo.uri")),
            own_bed=own,
        )

    def as_user(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` as the user, with a login's few variables and no more."""
        account = pwd.getpwnam(self.user)
        clean = ["env", "-i", f"HOME={account.pw_dir}", f"USER={self.user}", f"LOGNAME={self.user}", "LANG=C.UTF-8"]
        clean += ["PATH=/usr/local/bin:/usr/bin:/bin", *map(str, command)]
        if os.geteuid() == account.pw_uid:
            return clean
        return ["setpriv", f"--reuid={self.user}", f"--regid={account.pw_gid}", "--init-groups", "--", *clean]

    def run(
        self, *command: str | Path, check: bool = True, timeout: float = 120, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user, in the user's shared folder; with `check`, a code other than 0 fails the test."""
        done = subprocess.run(
            self.as_user(command), capture_output=True, text=True, check=False, timeout=timeout, cwd=cwd or self.shared
        )
        if check and done.returncode != 0:
            words = " ".join(map(str, command))
            raise AssertionError(f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def jobs(self, numbers: Sequence[str] = ()) -> list[Job]:
        """All jobs of the user that the queue still knows, ended ones too; or those of the given numbers."""
        wanted = ["--jobs", ",".join(numbers)] if numbers else ["--user", self.user]
        fields = "JobArrayID:|,JobID:|,Name:|,State:|,Reason:|,NodeList:|,RestartCnt:|"
        done = subprocess.run(
            ["squeue", "--noheader", "--array", "--states=all", *wanted, "--Format", fields.replace(":|", ":200")],
            capture_output=True,
            text=True,
            check=True,
        )
        return [_job(line) for line in done.stdout.splitlines() if line.strip()]

    def bed(self, *words: str) -> None:
        """Make a fault or undo it, by the bed's script."""
        subprocess.run([str(BED), *words], check=True, capture_output=True, text=True, timeout=120)


def _job(line: str) -> Job:
    array_id, _, name, state, reason, node, restarts = (line[i : i + 200].strip() for i in range(0, 1400, 200))
    number, _, task = array_id.partition("_")
    return Job(number, task, name, state, reason, node, int(restarts or 0))


def wait_until(what: str, ready: Callable[[], object], seconds: float, every: float = 0.2) -> None:
    """Wait until `ready()` is true; AssertionError naming what did not come after `seconds`."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(every)
