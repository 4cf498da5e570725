"""Keep C++ libraries that print (waterz) from writing into the output of a command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator

_STDOUT = 1
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def silent_stdout() -> Iterator[None]:
    """Send everything that is written to standard output inside the block to nowhere.

    Works on the file descriptor, since C++ does not ask Python, and on `sys.stdout` for the Python part of such a
    library. The descriptor belongs to the whole process: keep the block short. Threads take turns.
    """
    with _one_at_a_time:
        sys.stdout.flush()
        saved = os.dup(_STDOUT)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, _STDOUT)
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            os.dup2(saved, _STDOUT)
            os.close(saved)
            os.close(nowhere)
