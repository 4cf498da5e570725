"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 end the work as Interrupted (75), also where Python drops what a handler raises.

An exception raised in a finaliser, in a callback of compiled code or under somebody's `except Exception` never comes
out.  So the handler remembers that a signal came, and long work asks it before it begins and between its steps.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from lsdflow_contract.errors import InternalError, Interrupted, StageError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
# What a terminal sends to every process of a command. One that is ignored from the start (nohup, &) stays ignored.
OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
# Ctrl-C in `lsdflow run` comes to a stage twice, from the terminal and passed on: that may not break off tidying up.
SAME_SECONDS = 2.0
GO_ON = "run the same command again to resume"
Handler = Callable[[int, FrameType | None], object] | int | None


class EndOfWork:
    """The handler of the signals; `error` is what ends the work, none while no signal has come."""

    def __init__(self) -> None:
        self.error: Interrupted | None = None
        self._since = 0.0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.error is not None and time.monotonic() - self._since < SAME_SECONDS:
            return
        self.error, self._since = interrupted_by(number), time.monotonic()
        raise self.error

    def afterwards(self, handler: Handler) -> Handler:
        """The handler to put back: as it was, but a signal that comes a second time does not end the error's report."""
        if self.error is None or time.monotonic() - self._since >= SAME_SECONDS:
            return handler

        def pass_on(number: int, _frame: FrameType | None) -> None:
            if time.monotonic() - self._since >= SAME_SECONDS:
                signal.signal(number, handler)
                signal.raise_signal(number)

        return pass_on


def interrupted_by(number: int) -> Interrupted:
    """What a signal ends the work with."""
    return Interrupted(f"stopped by {signal.Signals(number).name}", fix=GO_ON)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that this process may listen to: all but what it was started to ignore."""
    return [n for n in numbers if n not in OF_TERMINALS or signal.getsignal(n) != signal.SIG_IGN]


def leave_terminal_to_coordinator() -> None:
    """For a worker process: Ctrl-C is for its coordinator alone, which ends its workers and reports it once."""
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Within, the signals end the work: whatever is finished stays. Handlers are put back after."""
    end = EndOfWork()
    before = {number: signal.signal(number, end) for number in heard(SIGNALS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, end.afterwards(handler))


def end_if_asked(handler: object = None) -> None:
    """Raise Interrupted if a signal has come whose exception was dropped.

    handler: that of the signals, if it has been replaced since; else the present one.
    """
    end = signal.getsignal(signal.SIGTERM) if handler is None else handler
    if isinstance(end, EndOfWork) and end.error is not None:
        raise end.error from None


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """An Interrupted comes out as itself, also where Python or a library makes another error of it, as in an import.

    So does Ctrl-C where compiled code listens to it, and not our handler.
    """
    try:
        yield
    except KeyboardInterrupt:
        end_if_asked()
        raise interrupted_by(signal.SIGINT) from None
    except Exception as error:
        if isinstance(error, InternalError) or not isinstance(error, StageError):
            end_if_asked()
        raise
