"""One coordinator per stage: a lease file on shared storage (lsdflow_command.lease_file), and the fence of its commits.

1. a coordinator takes the lease, or is refused (73)
2. one that finds its lease taken over stops (73). Blocks are pure and committed whole: whatever two of them did
   meanwhile are the same bits.
3. a commit asks the fence of the coordinator that ordered it: a worker that slept through a change of coordinators
   writes nothing, not even if other parameters are at work on the same arrays by now.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsdflow_command.lease_file import EXPIRY_SECONDS, Holder, LeaseFile, Renewal
from lsdflow_contract.errors import Interrupted, NotOurs

LOG = logging.getLogger("lsdflow.lease")
STAGE_IS_LED = "another coordinator works on this stage of the experiment"


@dataclass(frozen=True)
class Fence:
    """Lets a commit pass while the lease of `folder` is held by the coordinator with this token; "" lets all pass."""

    folder: Path
    token: str

    @classmethod
    def of_holder(cls, folder: Path) -> Fence:
        """The fence of the coordinator that holds the lease now; open if there is none."""
        holder = _file(folder).holder()
        return cls(folder, holder.token if holder else "")

    def require(self) -> None:
        """Raise Interrupted (75) if the lease was released or taken over."""
        if not self.token:
            return
        holder = _file(self.folder).holder()
        if holder is None or holder.token != self.token:
            LOG.warning("refused: the coordinator that ordered this block is gone; it is left to its successor")
            raise Interrupted(
                "the coordinator that ordered this block is gone",
                where=self.folder / "lease",
                hint="nothing to do: the block is left to its successor",
            )


@contextmanager
def lease(folder: Path, refusal: str = STAGE_IS_LED) -> Iterator[None]:
    """Hold the lease of `folder` for the time of the block; `refusal` is what another one is told meanwhile.

    Raises NotOurs (73) if another coordinator holds it, also when it is taken over meanwhile.
    """
    file, lost = _file(folder), threading.Event()
    holder = file.take(lambda found, age_s: _taken(folder, refusal, found, age_s))
    renewal = Renewal(file, holder, lambda: _end_work(lost))
    renewal.start()
    try:
        try:
            yield
        finally:
            # After this no signal comes: one that came later would hide the error that ended the work.
            renewal.stop()
    except BaseException as error:
        # The fence of a commit may have seen it before the thread that renews.
        if lost.is_set() or (isinstance(error, Interrupted) and _is_lost(file, holder)):
            raise _taken(folder, refusal, file.holder()) from error
        raise
    finally:
        renewal.join()
        file.release(holder)


def _file(folder: Path) -> LeaseFile:
    return LeaseFile(folder / "lease")


def _end_work(lost: threading.Event) -> None:
    lost.set()
    # To the main thread: only there does it end a call that waits.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _is_lost(file: LeaseFile, holder: Holder) -> bool:
    try:
        return file.holder() != holder
    except OSError:
        return False


def _taken(folder: Path, refusal: str, found: Holder | None, age_s: float | None = None) -> NotOurs:
    who = "another process" if found is None else f"{found.host}, process {found.pid} {found.job}".strip()
    seen = "" if age_s is None else f"; last sign of life {age_s:.0f} s ago"
    return NotOurs(
        refusal,
        where=folder / "lease",
        found=f"{who}{seen}",
        hint=f"wait until it ends; if it is dead, run again {EXPIRY_SECONDS:.0f} s after its last sign of life",
    )
