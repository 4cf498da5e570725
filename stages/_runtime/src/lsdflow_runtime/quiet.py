"""Keep compiled libraries that print (waterz, daisy) from writing into the output of a command."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator

LOG = logging.getLogger("lsdflow.daisy")
_STDOUT, _STDERR = 1, 2
# One write of the server of daisy, perhaps with colours. Its warnings hold tracebacks of its own code.
_DAISY_WARNING = re.compile(rb"(\x1b\[\d+m)*\s*(\x1b\[\d+m)*(TRACE|DEBUG|INFO|WARN|ERROR)\b")
_EXIT_CODE = re.compile(r"exited with code (-?\d+)")
_LONGEST_WRITE_BYTES = 2**20
_LAST_WRITES_SECONDS = 5.0
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


@contextlib.contextmanager
def daisy_warnings_logged() -> Iterator[None]:
    """Log what daisy's server prints inside the block (level debug), and name a lost worker in one line.

    The server is compiled and writes to descriptor 2. A socket that keeps each write apart stands there for the time
    of the block; all other writes are passed on as they are.
    """
    sys.stderr.flush()
    shown = os.dup(_STDERR)
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_WRITE_BYTES)
    os.dup2(writer.fileno(), _STDERR)
    writer.close()
    passing = threading.Thread(target=_pass_on, args=(reader, shown), daemon=True)
    passing.start()
    logging.getLogger("daisy").addFilter(_lost_worker_in_one_line)
    try:
        yield
    finally:
        logging.getLogger("daisy").removeFilter(_lost_worker_in_one_line)
        sys.stderr.flush()
        os.dup2(shown, _STDERR)
        passing.join(_LAST_WRITES_SECONDS)
        reader.close()
        os.close(shown)


def _pass_on(reader: socket.socket, shown: int) -> None:
    """Until no process has the other end any more."""
    while written := reader.recv(_LONGEST_WRITE_BYTES):
        if _DAISY_WARNING.match(written):
            LOG.debug("daisy: %s", written.decode(errors="replace").strip())
        else:
            # A terminal or a reader that is gone must not end this thread: whoever writes would wait for ever.
            with contextlib.suppress(OSError):
                os.write(shown, written)


def _lost_worker_in_one_line(record: logging.LogRecord) -> bool:
    found = _EXIT_CODE.search(record.getMessage())
    if found is not None:
        code = int(found[1])
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        record.msg, record.args = "a worker process ended early (%s); its block is handed out again", (how,)
    return True
