"""One process at a time makes a run of a sweep, on whatever machine: a claim file on shared storage, by atomic links.

It is renewed by its time stamp, and dead when it was not renewed for EXPIRY_SECONDS, its process on this machine is
gone, or it was an earlier start of our own job. The stages have leases of their own: two that both believe to hold a
claim leave the same bits. What the claim saves is the work of the second one, also where a stage has no lease.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lsdflow_command.processes import has_ended
from lsdflow_contract.errors import NotOurs
from lsdflow_contract.files import storage_errors

LOG = logging.getLogger("lsdflow.sweep")
EXPIRY_SECONDS = 60.0
RENEWAL_SECONDS = 5.0


class AtWorkElsewhere(NotOurs):
    """Another process holds the claim."""


@dataclass(frozen=True)
class Claimant:
    """Who holds a claim; `job` is the scheduler's, `start` counts how often it was requeued."""

    token: str
    host: str
    pid: int
    job: str = ""
    start: int = 0

    @classmethod
    def this_process(cls) -> Claimant:
        """A new one: this process."""
        start = os.environ.get("SLURM_RESTART_COUNT", "0")
        job, host = os.environ.get("SLURM_JOB_ID", ""), socket.gethostname()
        return cls(uuid.uuid4().hex, host, os.getpid(), job, int(start) if start.isdigit() else 0)

    def is_gone(self, now: Claimant) -> bool:
        """True if it certainly does not run any more, as `now` sees it."""
        if self.job and self.job == now.job and self.start < now.start:
            return True
        return has_ended(self.host, self.pid)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim of an experiment folder for the time of the block. AtWorkElsewhere (73) if it is held."""
    path = _path(folder)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        holder = _take(path)
    stopped = threading.Event()
    renewal = threading.Thread(target=_renew, args=(path, holder, stopped), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        stopped.set()
        renewal.join()
        with contextlib.suppress(OSError):
            if _read(path) == holder:
                path.unlink()


def claimant_of(folder: Path) -> Claimant | None:
    """Who works there now, as far as the time stamp tells; writes nothing."""
    path = _path(folder)
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime < EXPIRY_SECONDS:
            found = _read(path)
            return None if found is None or found.is_gone(Claimant.this_process()) else found
    return None


def _path(folder: Path) -> Path:
    return folder / "runs" / "sweep" / "claim"


def _take(path: Path) -> Claimant:
    ours = Claimant.this_process()
    own = path.with_name(f".claim.{ours.token}")
    own.write_text(json.dumps(asdict(ours)))
    try:
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(own, path)
                return ours
            found = _read(path)
            if found is None:
                continue
            age_s = _age_s(path, own)
            if not (found.is_gone(ours) or age_s > EXPIRY_SECONDS):
                raise AtWorkElsewhere(
                    "another process works on this run",
                    where=path,
                    found=f"{found.host}, process {found.pid}; last sign of life {max(age_s, 0):.0f} s ago",
                    hint=f"wait until it ends; if it is dead, run again in {EXPIRY_SECONDS:.0f} s",
                )
            LOG.warning("taking over from a process that is gone: %s, process %d", found.host, found.pid)
            _take_away(path, found)
    finally:
        own.unlink(missing_ok=True)


def _take_away(path: Path, found: Claimant) -> None:
    """Rename the dead claim away; a living one, by which somebody replaced it meanwhile, is put back."""
    dead = path.with_name(f".claim.{uuid.uuid4().hex}.dead")
    with contextlib.suppress(FileNotFoundError):
        path.rename(dead)
        if _read(dead) != found:
            with contextlib.suppress(FileExistsError):
                os.link(dead, path)
        dead.unlink()


def _read(path: Path) -> Claimant | None:
    """The claimant; None if there is none. What cannot be read counts as somebody unknown."""
    try:
        return Claimant(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return Claimant("", "unknown", 0)


def _age_s(path: Path, own: Path) -> float:
    """Seconds since the claim was renewed, by the file server's clock: `own` is touched to learn the time there."""
    own.touch()
    try:
        return own.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _renew(path: Path, holder: Claimant, stopped: threading.Event) -> None:
    while not stopped.wait(RENEWAL_SECONDS):
        try:
            if _read(path) != holder:
                LOG.warning("another process took over: %s", path)
                return
            os.utime(path)
        except OSError as error:
            LOG.warning("the claim could not be renewed: %s", error)
