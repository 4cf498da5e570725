"""SIGTERM and SIGUSR2 end daisy's server at once, as SIGINT does.

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
from collections.abc import Iterator
from contextlib import contextmanager

from lsdflow_contract.errors import Interrupted

PASSED_ON = (signal.SIGTERM, signal.SIGUSR2)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Pass SIGTERM and SIGUSR2 on as SIGINT within the block. Only the main thread gets signals; elsewhere, nothing.

    Raises Interrupted (75) if one came. SIGINT itself stays KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ours, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_pass_on, args=(ours, came), daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        if not came:
            raise
        name = signal.Signals(came[0]).name
        raise Interrupted(f"stopped by {name}", hint="run the same command again to go on") from None
    finally:
        signal.set_wakeup_fd(before)
        written.close()
        watcher.join()
        ours.close()


def _pass_on(numbers: socket.socket, came: list[int]) -> None:
    while number := numbers.recv(1):
        if number[0] in PASSED_ON:
            came.append(number[0])
            os.kill(os.getpid(), signal.SIGINT)
