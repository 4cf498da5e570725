"""A file that one process at a time holds, on storage that several machines share: safe on NFS without locks.

1. write a file of our own, then link it to the name: of several that try, one succeeds (links are atomic)
2. a thread renews it by its time stamp; all times are those of the file server, so clocks of machines do not matter
3. one that was not renewed for EXPIRY_SECONDS is dead: who links a claim on it (one of several succeeds) looks again,
   and takes it away; then step 1.  Without a claim, somebody who looked long ago would take away its successor.
   At once dead: its process was numbered by our PID namespace and has ended, or it was an earlier start of our own job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lsdflow_command.processes import has_ended, pid_namespace
from lsdflow_contract.errors import NotOurs
from lsdflow_contract.files import storage_errors
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import JOB_VARIABLE

LOG = logging.getLogger("lsdflow.lease")
EXPIRY_SECONDS = 60.0
RENEWAL_SECONDS = 5.0
CLAIM_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Holder:
    """Who holds it; job: "17 restart 2", of the scheduler; namespace: what numbers the process."""

    token: str
    host: str
    pid: int
    job: str = ""
    namespace: str = ""

    @classmethod
    def this_process(cls) -> Holder:
        """A new holder: this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _own_job(), pid_namespace())

    def is_gone(self) -> bool:
        """True if it certainly does not run any more: seen from this machine, or an earlier start of our own job."""
        (job, start), (ours, our_start) = _job_and_start(self.job), _job_and_start(_own_job())
        if job and job == ours and start < our_start:
            return True
        return has_ended(self.host, self.pid, self.namespace)


@dataclass(frozen=True)
class LeaseFile:
    """The file at `path`."""

    path: Path

    def holder(self) -> Holder | None:
        """Who holds it; None: nobody. What cannot be read counts as somebody unknown."""
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def living_holder(self) -> Holder | None:
        """Who holds it and is at work, as far as the time stamp tells; by this machine's clock, writes nothing."""
        with contextlib.suppress(OSError):
            if time.time() - self.path.stat().st_mtime < EXPIRY_SECONDS:
                found = self.holder()
                return None if found is None or found.is_gone() else found
        return None

    def take(self, refusal: Callable[[Holder, float], NotOurs]) -> Holder:
        """Hold it from now on. Raises `refusal` of who holds it and the seconds since the last sign of life."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._take(refusal)

    def release(self, holder: Holder) -> None:
        """Hold it no longer; what another one took over stays."""
        with contextlib.suppress(OSError):
            if self.holder() == holder:
                self.path.unlink()

    def _take(self, refusal: Callable[[Holder, float], NotOurs]) -> Holder:
        ours = Holder.this_process()
        own = self.path.with_name(f".{self.path.name}.{ours.token}")
        own.write_text(json.dumps(asdict(ours)))
        try:
            while not _linked(own, self.path):
                found = self.holder()
                if found is None:
                    continue
                age_s = self._age_s(own, self.path)
                if not (found.is_gone() or age_s > EXPIRY_SECONDS):
                    raise refusal(found, max(age_s, 0.0))
                self.take_away(found, own)
            return ours
        finally:
            own.unlink(missing_ok=True)

    def take_away(self, found: Holder, own: Path) -> None:
        """Take a dead one away, unless another process is about to, or did.  own: our file, to link as our claim.

        Of a process that was killed meanwhile, the claim expires as a holder does.
        """
        claim = self.path.with_name(f".{self.path.name}.{hash_of(asdict(found))[:16]}.claim")
        if not _linked(own, claim):
            time.sleep(CLAIM_POLL_SECONDS)
            if self._age_s(own, claim) > EXPIRY_SECONDS:
                claim.unlink(missing_ok=True)
            return
        try:
            if self.holder() == found:
                LOG.warning("taking over from a process that is gone: %s, process %d", found.host, found.pid)
                self.path.unlink(missing_ok=True)
        finally:
            claim.unlink(missing_ok=True)

    def _age_s(self, own: Path, other: Path) -> float:
        """Seconds since a file was renewed, by the file server's clock: `own` is touched to learn the time there."""
        own.touch()
        try:
            return own.stat().st_mtime - other.stat().st_mtime
        except FileNotFoundError:
            return 0.0


class Renewal(threading.Thread):
    """Renews the file while it is held; calls `lost`, once, if another one took it over before `stop`."""

    def __init__(self, file: LeaseFile, holder: Holder, lost: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._file, self._holder, self._lost = file, holder, lost
        self._stopped, self._ending = threading.Event(), threading.Lock()

    def run(self) -> None:
        """Until it is stopped, or the file is lost."""
        while not self._stopped.wait(RENEWAL_SECONDS):
            try:
                if self._file.holder() != self._holder:
                    self._tell()
                    return
                os.utime(self._file.path)
            except OSError as error:
                LOG.warning("the lease could not be renewed: %s", error)

    def stop(self) -> None:
        """After this `lost` is not called any more."""
        with self._ending:
            self._stopped.set()

    def _tell(self) -> None:
        with self._ending:
            if not self._stopped.is_set():
                self._lost()


def _linked(own: Path, name: Path) -> bool:
    try:
        os.link(own, name)
    except FileExistsError:
        return False
    return True


@functools.lru_cache(16)
def _parsed(content: bytes) -> Holder:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return Holder("", "unknown", 0, "")


def _own_job() -> str:
    """The job of this process: as a wrapper tells it inside a container, else as SLURM does."""
    number, start = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    return os.environ.get(JOB_VARIABLE) or (f"{number} restart {start}" if number else "")


def _job_and_start(job: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\S+) restart (\d+)", job)
    return (found[1], int(found[2])) if found else (job, 0)
