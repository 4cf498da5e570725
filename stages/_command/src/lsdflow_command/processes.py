"""Relations to other processes: detect that one has ended, exclude a second one, and end with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.files import storage_errors

LOG = logging.getLogger("lsdflow")
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
# Set for a process whose standard input is a pipe that its launcher never writes to.
LAUNCHER_VARIABLE = "LSDFLOW_LAUNCHER"


def pid_namespace() -> str:
    """The scope of this process's number: the boot of its machine, and its PID namespace; "" if not on Linux.

    Two containers may have the same host name (docker --network host) but different namespaces, in which the same
    number means different processes.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def has_ended(host: str, pid: int, namespace: str | None = None) -> bool:
    """True if the process has certainly ended; a process of another machine may always be running.

    namespace: the pid_namespace() of the process. Without it, a process of another container with this host name may
    count as ended, which is sufficient for values that are only shown.
    """
    if host != socket.gethostname() or (namespace is not None and (not namespace or namespace != pid_namespace())):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    with contextlib.suppress(OSError):  # an ended process keeps its number until its parent asks for its exit code
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
        return state in "ZX"
    return False


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process the signal when its parent ends, or send it at once if the parent has ended.

    The kernel sends nothing for a parent that ended before this call. For processes started by multiprocessing, its
    pipe to the parent shows that; with a fork server the kernel's parent (the server) is a different process.
    """
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, number)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), number)


def end_with_launcher() -> None:
    """Let this process end at once when the one that started it with `tied_to_this_process` ends, however it ends.

    Unlike `end_with_parent`, this also reaches a process in a container.
    """
    if os.environ.pop(LAUNCHER_VARIABLE, ""):

        def wait() -> None:
            """Read the pipe until its other end is closed."""
            while os.read(0, 1):
                pass
            os._exit(128 + signal.SIGKILL)  # also ends the first process of a container, which ignores SIGKILL

        threading.Thread(target=wait, name="launcher", daemon=True).start()


@contextmanager
def tied_to_this_process() -> Iterator[int]:
    """The standard input for a process that is to end with this one: a pipe that closes when this process ends.

    The process must have the variable LAUNCHER_VARIABLE in its environment and call `end_with_launcher`.
    """
    its_end, our_end = os.pipe()  # children do not inherit them
    try:
        yield its_end
    finally:
        os.close(its_end)
        os.close(our_end)


@contextmanager
def one_at_a_time(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file that only one process at a time can hold; the lock ends with its process.

    Raises OutputConflict (73) naming `what` if another process holds it. Logs a warning on a file system without
    locks.
    """
    with storage_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "wait until it ends"
            raise OutputConflict(f"another {what} is at work in this experiment", where=lock, fix=fix) from error
        except OSError as error:
            LOG.warning("warning: this file system has no locks (%s): do not run %s twice at once", error, what)
        yield
