"""SIGTERM, SIGINT, SIGHUP and SIGUSR2 during training: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lsdflow_command.interruption import end_if_asked, heard

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


class StopRequest:
    """Stores the name of the signal that requested a stop; false until one arrives."""

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """In the context, a signal is stored instead of ending the process; a second one ends it as usual.

    Raises Interrupted at once if a signal arrived earlier and was lost (see `end_if_asked`).
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in heard(SIGNALS)}

    def remember(number: int, _frame: FrameType | None) -> None:
        request.name = signal.Signals(number).name
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, remember)
    try:
        for handler in before.values():
            end_if_asked(handler)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
