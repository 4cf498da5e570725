"""SIGTERM and SIGUSR2 end the work as Interrupted (75), also where Python drops what a signal handler raises.

An exception raised in a finaliser, in a callback of compiled code or under somebody's `except Exception` never comes
out.  So the handler remembers that a signal came, and long work asks it before it begins and between its steps.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lsdflow_contract.errors import InternalError, Interrupted, StageError

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class EndOfWork:
    """The handler of the signals; `error` is what ends the work, none while no signal has come."""

    def __init__(self) -> None:
        self.error: Interrupted | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.error = Interrupted(
            f"stopped by {signal.Signals(number).name}", hint="run the same command again to go on"
        )
        raise self.error


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Within, the signals end the work: whatever is finished stays. Handlers are put back after."""
    end = EndOfWork()
    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_if_asked(handler: object = None) -> None:
    """Raise Interrupted if a signal has come whose exception was dropped.

    handler: that of the signals, if it has been replaced since; else the present one.
    """
    end = signal.getsignal(signal.SIGTERM) if handler is None else handler
    if isinstance(end, EndOfWork) and end.error is not None:
        raise end.error from None


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """An Interrupted comes out as itself, also where Python or a library makes another error of it, as in an import."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InternalError) or not isinstance(error, StageError):
            end_if_asked()
        raise
