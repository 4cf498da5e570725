"""SIGTERM, SIGHUP and SIGUSR2 end daisy's server at once, as SIGINT does.

daisy's server is compiled: until it returns, Python runs no signal handler, and the server itself listens to SIGINT
alone. A time limit or `docker stop` would be noticed when the last block is done, that is never.

   SIGTERM -> Python notes its number in a socket (set_wakeup_fd) -> a thread of ours reads it -> SIGINT -> the server
   ends its workers and returns KeyboardInterrupt -> Interrupted (exit 75)
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lsdflow_command.interruption import heard, interrupted_by

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)

Handler = Callable[[int, FrameType | None], Any] | int | None


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Pass SIGTERM, SIGHUP and SIGUSR2 on as SIGINT within the block. Only the main thread gets signals.

    Raises Interrupted (75) if one came. SIGINT itself stays what it was, or becomes KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ours, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_pass_on, args=(ours, came, heard(PASSED_ON)), daemon=True)
    watcher.start()
    ctrl_c = _named_by(came)
    try:
        yield
    except KeyboardInterrupt:
        if not came:
            raise
        raise interrupted_by(came[0]) from None
    finally:
        # Before the socket: a signal from here on is not ours.
        _put_back(ctrl_c)
        signal.set_wakeup_fd(before)
        written.close()
        watcher.join()
        ours.close()


def _named_by(came: list[int]) -> Handler:
    """Let the handler of SIGINT be called with the signal that was passed on, so that it tells its name.

    Returns that handler.
    """
    before = signal.getsignal(signal.SIGINT)

    def told(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(came[0] if came else number, frame)

    if callable(before) and before is not signal.default_int_handler:
        signal.signal(signal.SIGINT, told)
    return before


def _put_back(handler: Handler) -> None:
    if callable(handler):
        signal.signal(signal.SIGINT, handler)


def _pass_on(numbers: socket.socket, came: list[int], heard_ones: list[signal.Signals]) -> None:
    while number := numbers.recv(1):
        if number[0] in heard_ones:
            came.append(number[0])
            os.kill(os.getpid(), signal.SIGINT)
