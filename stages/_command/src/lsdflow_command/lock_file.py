"""A lock file for one process at a time on storage shared by several machines; safe on NFS without flock.

1. A process writes its own file and links it to the name of the lock. Only one of several processes succeeds, because a
   link is atomic.
2. A thread renews the lock by its time stamp. All times are those of the file server, so the clocks of the machines do
   not matter.
3. A lock that was not renewed for EXPIRY_SECONDS is stale. A process that wants it links a takeover file (only one of
   several processes succeeds), reads the lock again, and removes it; then step 1. Without the takeover file, a process
   that read the stale lock long ago could remove the lock of its successor.

A lock is stale immediately if its process ran in our PID namespace and has ended, or if an earlier start of our job
holds it.

`experiment_lock.py` says which locks an experiment has.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lsdflow_command.processes import has_ended, pid_namespace
from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.files import server_time, storage_errors
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import JOB_VARIABLE

LOG = logging.getLogger("lsdflow.lock")
EXPIRY_SECONDS = 60.0
RENEWAL_SECONDS = 5.0
TAKEOVER_POLL_SECONDS = 0.02
STAGE_IS_RUNNING = "another coordinator works on this stage of the experiment"


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock. job: "17 restart 2", of the scheduler. namespace: that of `pid`."""

    id: str
    host: str
    pid: int
    job: str = ""
    namespace: str = ""

    @classmethod
    def this_process(cls) -> Holder:
        """A new holder: this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _own_job(), pid_namespace())

    def has_ended(self) -> bool:
        """True if the process has certainly ended."""
        (job, start), (own_job, own_start) = _job_and_start(self.job), _job_and_start(_own_job())
        if job and job == own_job and start < own_start:
            return True
        return has_ended(self.host, self.pid, self.namespace)


Refusal = Callable[[Holder, float], OutputConflict]


@dataclass(frozen=True)
class LockFile:
    """The lock at `path`."""

    path: Path

    def holder(self) -> Holder | None:
        """The holder of the lock, None if it is free. An unreadable file has an unknown holder."""
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def live_holder(self) -> Holder | None:
        """The holder of the lock if it still runs. The lock is not changed."""
        with contextlib.suppress(OSError):
            now = server_time(self.path.parent)  # a new file there also makes an NFS client look for the lock again
            found, renewed = self.holder(), self.path.stat().st_mtime
            if found is not None and not found.has_ended() and now - renewed < EXPIRY_SECONDS:
                return found
        return None

    @contextlib.contextmanager
    def held(self, refusal: Refusal, lost: Callable[[], None]) -> Iterator[Holder]:
        """Hold the lock within the `with` block, and renew it from a thread; yields the holder.

        That thread calls `lost` once if another process takes over the lock. Raises the errors of `acquire`.
        """
        holder, ended, ending = self.acquire(refusal), threading.Event(), threading.Lock()

        def renew() -> None:
            """Renew the lock at intervals; call `lost` once if it has another holder."""
            while not ended.wait(RENEWAL_SECONDS):
                try:
                    if self.holder() != holder:
                        with ending:
                            if not ended.is_set():
                                lost()
                        return
                    os.utime(self.path)
                except OSError as error:
                    LOG.warning("the lock %s could not be renewed: %s", self.path, error)

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield holder
        finally:
            # From here on `lost` is not called, because it would hide the error that ended the block.
            with ending:
                ended.set()
            renewing.join()
            self.release(holder)

    def acquire(self, refusal: Refusal) -> Holder:
        """Acquire the lock. Raises `refusal(holder, seconds since the last renewal)` if another process holds it."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            holder = Holder.this_process()
            own = self.path.with_name(f".{self.path.name}.{holder.id}")
            own.write_text(json.dumps(asdict(holder)))
            try:
                while not _linked(own, self.path):
                    found = self.holder()
                    if found is None:
                        continue
                    age_s = _age_s(own, self.path)
                    if not (found.has_ended() or age_s > EXPIRY_SECONDS):
                        raise refusal(found, max(age_s, 0.0))
                    self.remove_stale(found, own)
                return holder
            finally:
                own.unlink(missing_ok=True)

    def release(self, holder: Holder) -> None:
        """Remove the lock, unless another process has taken over."""
        with contextlib.suppress(OSError):
            if self.holder() == holder:
                self.path.unlink()

    def remove_stale(self, found: Holder, own: Path) -> None:
        """Remove a stale lock, unless another process is doing so or has done so. own: our file, to link.

        The takeover file of a killed process expires like a lock.
        """
        takeover = self.path.with_name(f".{self.path.name}.{hash_of(asdict(found))[:16]}.takeover")
        if not _linked(own, takeover):
            time.sleep(TAKEOVER_POLL_SECONDS)
            if _age_s(own, takeover) > EXPIRY_SECONDS:
                takeover.unlink(missing_ok=True)
            return
        try:
            if self.holder() == found:
                LOG.warning("the lock of a process that has ended is taken over: %s, process %d", found.host, found.pid)
                self.path.unlink(missing_ok=True)
        finally:
            takeover.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_lock(folder: Path, refusal: str = STAGE_IS_RUNNING) -> Iterator[Holder]:
    """Hold the lock file in `folder` within the `with` block; yields the holder.

    Raises OutputConflict (73) with the message `refusal` if another process holds the lock, or takes over meanwhile, in
    which case this process gets SIGTERM.
    """
    file, lost = LockFile(folder / "lock"), threading.Event()
    refused = functools.partial(refusal_of, file, refusal)

    def stop() -> None:
        """Note that the lock is lost, and end the work of this process by SIGTERM."""
        lost.set()
        # To the main thread, because a signal interrupts a waiting call only there.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    try:
        with file.held(refused, stop) as holder:
            yield holder
    except BaseException as error:
        if lost.is_set():
            raise refused(file.holder()) from error
        raise
    if lost.is_set():
        raise refused(file.holder())


def refusal_of(file: LockFile, text: str, found: Holder | None, age_s: float | None = None) -> OutputConflict:
    """The error with the message `text` for a lock that `found` holds; age_s: seconds since its last sign of life."""
    who = "another process" if found is None else f"{found.host}, process {found.pid} {found.job}".strip()
    return OutputConflict(
        text,
        where=file.path,
        found=who if age_s is None else f"{who}; last sign of life {age_s:.0f} s ago",
        fix=f"wait until it ends; if it is dead, run again {EXPIRY_SECONDS:.0f} s after its last sign of life",
    )


def _age_s(own: Path, other: Path) -> float:
    """Seconds since a file was renewed, by the file server's clock, which is read by touching `own`."""
    own.touch()
    try:
        return own.stat().st_mtime - other.stat().st_mtime
    except FileNotFoundError:
        return 0.0


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
    """The job of this process: from the wrapper inside a container, else from Slurm."""
    number, start = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    return os.environ.get(JOB_VARIABLE) or (f"{number} restart {start}" if number else "")


def _job_and_start(job: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\S+) restart (\d+)", job)
    return (found[1], int(found[2])) if found else (job, 0)
