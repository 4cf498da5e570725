"""One coordinator per stage: a lease file on shared storage, safe on NFS without locks.

1. write a file of our own, then link it to the name `lease`: of several that try, one succeeds (links are atomic)
2. a thread renews it by its time stamp; all times are those of the file server, so clocks of machines do not matter
3. a lease that was not renewed for EXPIRY_SECONDS is dead: it is renamed away (one of several succeeds), then step 1
   At once dead: its process was on this machine and is gone, or it was an earlier start of the same scheduler's job.
4. a coordinator that finds its lease taken over stops (73). Blocks are pure and committed whole: whatever two of them
   did meanwhile are the same bits.
5. a commit asks the fence of the coordinator that ordered it: a worker that slept through a change of coordinators
   writes nothing, not even if other parameters are at work on the same arrays by now.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lsdflow_command.processes import has_ended
from lsdflow_contract.errors import Interrupted, NotOurs
from lsdflow_contract.files import storage_errors
from lsdflow_contract.manifest import JOB_VARIABLE

LOG = logging.getLogger("lsdflow.lease")
EXPIRY_SECONDS = 60.0
RENEWAL_SECONDS = 5.0


@dataclass(frozen=True)
class Holder:
    """Who holds a lease."""

    token: str
    host: str
    pid: int
    job: str

    @classmethod
    def this_process(cls) -> Holder:
        """A new holder: this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid(), os.environ.get(JOB_VARIABLE, ""))

    def is_gone(self) -> bool:
        """True if it certainly does not run any more: seen from this machine, or an earlier start of our own job."""
        ours = os.environ.get(JOB_VARIABLE, "").split(" ")[0]
        if ours and self.job.split(" ")[0] == ours:
            return True
        return has_ended(self.host, self.pid)


@dataclass(frozen=True)
class Fence:
    """Lets a commit pass while the lease of `folder` is held by the coordinator with this token; "" lets all pass."""

    folder: Path
    token: str

    @classmethod
    def of_holder(cls, folder: Path) -> Fence:
        """The fence of the coordinator that holds the lease now; open if there is none."""
        holder = _read(folder)
        return cls(folder, holder.token if holder else "")

    def require(self) -> None:
        """Raise Interrupted (75) if the lease was released or taken over."""
        if not self.token:
            return
        holder = _read(self.folder)
        if holder is None or holder.token != self.token:
            LOG.warning("refused: the coordinator that ordered this block is gone; it is left to its successor")
            raise Interrupted(
                "the coordinator that ordered this block is gone",
                where=self.folder / "lease",
                hint="nothing to do: the block is left to its successor",
            )


@contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Hold the lease of `folder` for the time of the block.

    Raises NotOurs (73) if another coordinator holds it, also when it is taken over meanwhile.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        holder = _take(folder)
    renewal = _Renewal(folder, holder)
    renewal.start()
    try:
        try:
            yield
        finally:
            renewal.stop()
    except BaseException as error:
        # The fence of a commit may have seen it before the thread that renews.
        if renewal.lost or (isinstance(error, Interrupted) and _is_lost(folder, holder)):
            raise _taken(folder, _read(folder)) from error
        raise
    finally:
        renewal.join()
        _release(folder, holder)


def _is_lost(folder: Path, holder: Holder) -> bool:
    try:
        return _read(folder) != holder
    except OSError:
        return False


def _take(folder: Path) -> Holder:
    holder = Holder.this_process()
    own = folder / f".lease.{holder.token}"
    own.write_text(json.dumps(asdict(holder)))
    try:
        while not _linked(own, folder / "lease"):
            found = _read(folder)
            if found is None:
                continue
            age = _age_s(folder, own)
            if not (found.is_gone() or age > EXPIRY_SECONDS):
                raise _taken(folder, found, age)
            LOG.warning("taking over from a coordinator that is gone: %s, process %d", found.host, found.pid)
            _take_away(folder, found)
        return holder
    finally:
        own.unlink(missing_ok=True)


def _take_away(folder: Path, found: Holder) -> None:
    """Rename the dead lease away. A living one, by which somebody replaced it meanwhile, is put back."""
    dead = folder / f".lease.{uuid.uuid4().hex}.dead"
    with contextlib.suppress(FileNotFoundError):
        (folder / "lease").rename(dead)
        if _holder_in(dead) != found:
            _linked(dead, folder / "lease")
        dead.unlink()


def _linked(own: Path, name: Path) -> bool:
    try:
        os.link(own, name)
    except FileExistsError:
        return False
    return True


def _read(folder: Path) -> Holder | None:
    try:
        return _holder_in(folder / "lease")
    except FileNotFoundError:
        return None


def _holder_in(path: Path) -> Holder:
    return _parsed(path.read_bytes())


@functools.lru_cache(16)
def _parsed(content: bytes) -> Holder:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return Holder("", "unknown", 0, "")


def _age_s(folder: Path, own: Path) -> float:
    """Seconds since the lease was renewed, by the file server's clock: `own` is touched to learn the time there."""
    own.touch()
    try:
        return own.stat().st_mtime - (folder / "lease").stat().st_mtime
    except FileNotFoundError:
        return 0.0


class _Renewal(threading.Thread):
    """Renews a lease; ends the work of the main thread (SIGTERM) if the lease was taken over."""

    def __init__(self, folder: Path, holder: Holder) -> None:
        super().__init__(daemon=True)
        self._folder, self._holder = folder, holder
        self._stopped, self._ending = threading.Event(), threading.Lock()
        self.lost = False

    def run(self) -> None:
        """Until it is stopped, or the lease is lost."""
        while not self._stopped.wait(RENEWAL_SECONDS):
            try:
                if _read(self._folder) != self._holder:
                    self._tell()
                    return
                os.utime(self._folder / "lease")
            except OSError as error:
                LOG.warning("the lease could not be renewed: %s", error)

    def stop(self) -> None:
        """After this no signal comes: one that came later would hide the error that ended the work."""
        with self._ending:
            self._stopped.set()

    def _tell(self) -> None:
        with self._ending:
            if self._stopped.is_set():
                return
            self.lost = True
            # To the main thread: only there does it end a call that waits.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _release(folder: Path, holder: Holder) -> None:
    with contextlib.suppress(OSError):
        if _read(folder) == holder:
            (folder / "lease").unlink()


def _taken(folder: Path, found: Holder | None, age_s: float | None = None) -> NotOurs:
    who = "another coordinator" if found is None else f"{found.host}, process {found.pid} {found.job}".strip()
    seen = "" if age_s is None else f"; last sign of life {age_s:.0f} s ago"
    return NotOurs(
        "another coordinator works on this stage of the experiment",
        where=folder / "lease",
        found=f"{who}{seen}",
        hint=f"wait until it ends; if it is dead, run again {EXPIRY_SECONDS:.0f} s after its last sign of life",
    )
