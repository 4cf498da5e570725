"""One coordinator per stage at a time: a file on shared storage (lsdflow_command.lease_file) saves doing work twice.

Results are written once, in the folder of their key, so two coordinators of one key would write the same bits, and two
of different keys write elsewhere. A coordinator whose file was taken over stops (73).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_command.lease_file import EXPIRY_SECONDS, Holder, LeaseFile, Renewal
from lsdflow_contract.errors import NotOurs

LOG = logging.getLogger("lsdflow.lease")
STAGE_IS_LED = "another coordinator works on this stage of the experiment"


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
        if lost.is_set():
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


def _taken(folder: Path, refusal: str, found: Holder | None, age_s: float | None = None) -> NotOurs:
    who = "another process" if found is None else f"{found.host}, process {found.pid} {found.job}".strip()
    seen = "" if age_s is None else f"; last sign of life {age_s:.0f} s ago"
    return NotOurs(
        refusal,
        where=folder / "lease",
        found=f"{who}{seen}",
        hint=f"wait until it ends; if it is dead, run again {EXPIRY_SECONDS:.0f} s after its last sign of life",
    )
