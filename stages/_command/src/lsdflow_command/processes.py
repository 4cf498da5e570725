"""Other processes: has one ended, is one at the same work, and ending with the one that started this."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_contract.errors import NotOurs
from lsdflow_contract.files import storage_errors

LOG = logging.getLogger("lsdflow")
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def has_ended(host: str, pid: int) -> bool:
    """True if the process certainly does not run any more; of another machine nobody here can tell."""
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process the signal when its parent ends; send it at once if the parent has ended.

    The kernel reports nothing for a parent that ended before this call. For processes started by multiprocessing, its
    pipe to the parent shows that; with a fork server the parent of the kernel (the server) is another process.
    """
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, number)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), number)


@contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Only one process at a time gets past this lock file; the lock falls with its process.

    Raises NotOurs (73) naming `what` if another one has it. On a file system without locks: a warning.
    """
    with storage_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait until it ends"
            raise NotOurs(f"another {what} is at work in this experiment", where=lock, hint=hint) from error
        except OSError as error:
            LOG.warning("warning: this file system has no locks (%s): do not run %s twice at once", error, what)
        yield
