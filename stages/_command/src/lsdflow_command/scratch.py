"""A folder for a while: removed at the end of the `with` block, or by the next command if its process was killed.

    .NAME-HOST~xxxxxxxx/    a process of HOST has it as long as it holds the lock on the file in it
        in-use

The lock ends with its process, also after SIGKILL.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path

from lsdflow_command.interruption import tidied_at_signals

IN_USE = "in-use"


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder in `parent`; first remove those that killed processes of this machine left there.

    Raises OSError if it cannot be made.
    """
    prefix = f".{name}-{socket.gethostname()}~"
    for left in parent.glob(f"{escape(prefix)}*"):
        if _is_left(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        tidied = tidied_at_signals(partial(shutil.rmtree, folder, ignore_errors=True))
        # It gets its name when it is locked: another process never finds it without a lock.
        with tidied, (folder / f"{IN_USE}.new").open("wb") as file:
            with suppress(OSError):  # a file system without locks: what is left there stays
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / f"{IN_USE}.new").rename(folder / IN_USE)
            yield folder


def _is_left(folder: Path) -> bool:
    """True if no process holds the lock of this folder."""
    try:
        with (folder / IN_USE).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
