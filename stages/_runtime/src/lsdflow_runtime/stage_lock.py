"""One coordinator per stage at a time: a lock file on shared storage saves computing blocks twice.

Results are written once, in the folder of their key. So two coordinators of one key would write the same bits, and two
of different keys write into different folders. A coordinator whose lock was taken over stops with exit code 73.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_command.lock_file import EXPIRY_SECONDS, Holder, LockFile
from lsdflow_contract.errors import NotOurs

STAGE_IS_RUNNING = "another coordinator works on this stage of the experiment"


@contextmanager
def stage_lock(folder: Path, refusal: str = STAGE_IS_RUNNING) -> Iterator[None]:
    """Hold the lock file in `folder` within the block.

    Raises NotOurs (73) with the message `refusal` if another process holds the lock, or takes it over meanwhile.
    """
    file, lost = LockFile(folder / "lock"), threading.Event()

    def refused(found: Holder | None, age_s: float | None = None) -> NotOurs:
        who = "another process" if found is None else f"{found.host}, process {found.pid} {found.job}".strip()
        return NotOurs(
            refusal,
            where=file.path,
            found=who if age_s is None else f"{who}; last sign of life {age_s:.0f} s ago",
            hint=f"wait until it ends; if it is dead, run again {EXPIRY_SECONDS:.0f} s after its last sign of life",
        )

    def stop() -> None:
        lost.set()
        # To the main thread: only there does a signal end a call that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    try:
        with file.held(refused, stop):
            yield
    except BaseException as error:
        if lost.is_set():
            raise refused(file.holder()) from error
        raise
