"""Signal handling and logging for daisy's server, which is compiled: signals stop it, and its output is logged.

Until the server returns, Python runs no signal handler, and the server itself handles SIGINT only. Without this module,
a time limit or `docker stop` would have no effect until the last block is done.

    SIGTERM -> Python writes its number into a socket (set_wakeup_fd) -> a thread reads it and sends SIGINT
            -> the server ends its workers and returns KeyboardInterrupt -> Interrupted (exit code 75)

The server writes warnings, with tracebacks of its own code, to file descriptor 2.

    descriptor 2 -> a socket that keeps each write apart -> a thread: warnings of daisy become log lines of level debug,
                                                            everything else is written to the real standard error
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lsdflow_command.interruption import heard, interrupted_by

LOG = logging.getLogger("lsdflow.daisy")
SENT_AS_SIGINT = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
STDERR = 2
# One write of daisy's server, perhaps with colours.
DAISY_WARNING = re.compile(rb"(\x1b\[\d+m)*\s*(\x1b\[\d+m)*(TRACE|DEBUG|INFO|WARN|ERROR)\b")
EXIT_CODE = re.compile(r"exited with code (-?\d+)")
LONGEST_WRITE_BYTES = 2**20
LAST_WRITES_SECONDS = 5.0


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Convert SIGTERM, SIGHUP and SIGUSR2 to SIGINT within the block. Only the main thread gets signals.

    Raises Interrupted (75) naming the signal. For SIGINT the error is that of its handler, or KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    sent_on = heard(SENT_AS_SIGINT)
    numbers, written = socket.socketpair()
    written.setblocking(False)
    wakeup = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)

    def send_on() -> None:
        """Send SIGINT to this process for each signal in `sent_on`."""
        while number := numbers.recv(1):
            if number[0] in sent_on:
                came.append(number[0])
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send_on, daemon=True)
    thread.start()
    handler = signal.getsignal(signal.SIGINT)

    def name_first(number: int, frame: FrameType | None) -> None:
        """Call the handler of SIGINT with the signal that came first, so that its error names that signal."""
        if callable(handler):
            handler(came[0] if came else number, frame)

    if callable(handler) and handler is not signal.default_int_handler:
        signal.signal(signal.SIGINT, name_first)
    try:
        yield
    except KeyboardInterrupt:
        if not came:
            raise
        raise interrupted_by(came[0]) from None
    finally:
        # Before the socket is closed, so that later signals are handled as usual.
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(wakeup)
        written.close()
        thread.join()
        numbers.close()


@contextmanager
def daisy_warnings_logged() -> Iterator[None]:
    """Log the output of daisy's server within the block (level debug), and report a lost worker in one line."""
    sys.stderr.flush()
    stderr = os.dup(STDERR)
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_WRITE_BYTES)
    os.dup2(writer.fileno(), STDERR)
    writer.close()

    def forward() -> None:
        """Copy what is written to stderr, with daisy's warnings at level DEBUG."""
        # Until all processes have closed the other end.
        while written := reader.recv(LONGEST_WRITE_BYTES):
            if DAISY_WARNING.match(written):
                LOG.debug("daisy: %s", written.decode(errors="replace").strip())
            else:
                # A closed terminal or reader must not end this thread, because every writer would then wait forever.
                with suppress(OSError):
                    os.write(stderr, written)

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    logging.getLogger("daisy").addFilter(_lost_worker_in_one_line)
    try:
        yield
    finally:
        logging.getLogger("daisy").removeFilter(_lost_worker_in_one_line)
        sys.stderr.flush()
        os.dup2(stderr, STDERR)
        thread.join(LAST_WRITES_SECONDS)
        reader.close()
        os.close(stderr)


def _lost_worker_in_one_line(record: logging.LogRecord) -> bool:
    found = EXIT_CODE.search(record.getMessage())
    if found is not None:
        code = int(found[1])
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        record.msg, record.args = "a worker process ended early (%s); another one will process its block", (how,)
    return True
