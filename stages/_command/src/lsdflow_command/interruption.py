"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 end a command with Interrupted (75), even if Python drops the exception.

An exception of a signal handler is lost if it is raised in a finaliser, in a callback of compiled code or inside an
`except Exception` of a library. So the handler records the signal, and long computations check for it before they begin
and between their steps.
"""

from __future__ import annotations

import atexit
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from lsdflow_contract.errors import InternalError, Interrupted, StageError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
# Signals that a terminal sends to every process of a command. Those ignored from the start (nohup, &) stay ignored.
OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
# Signals that would end Python at once, without removing what a command has begun; Ctrl-C does not.
ENDING = (signal.SIGTERM, signal.SIGHUP)
# A stage of `lsdflow run` gets Ctrl-C twice, from the terminal and from the launcher: this must not stop its cleanup.
SAME_SECONDS = 2.0
LAST_SECONDS = 5.0  # what a killed child gets: one that waits for a dead file server cannot end
RESUME = "run the same command again to resume"
Handler = Callable[[int, FrameType | None], object] | int | None


class EndOfWork:
    """The handler of the signals; `error` is the exception for the first signal, None before."""

    def __init__(self) -> None:
        self.error: Interrupted | None = None
        self._since = 0.0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.error is not None and time.monotonic() - self._since < SAME_SECONDS:
            return
        self.error, self._since = interrupted_by(number), time.monotonic()
        raise self.error

    def afterwards(self, handler: Handler) -> Handler:
        """The handler to restore: the former one, but a repeated signal does not stop the report of the error."""
        if self.error is None or time.monotonic() - self._since >= SAME_SECONDS:
            return handler

        def pass_on(number: int, _frame: FrameType | None) -> None:
            """Ignore repetitions of the same stop; later signals get the former handler."""
            if time.monotonic() - self._since >= SAME_SECONDS:
                signal.signal(number, handler)
                signal.raise_signal(number)

        return pass_on


def interrupted_by(number: int) -> Interrupted:
    """The error for a signal."""
    return Interrupted(f"stopped by {signal.Signals(number).name}", fix=RESUME)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """The signals that this process handles: all that were not ignored when it was started."""
    return [n for n in numbers if n not in OF_TERMINALS or signal.getsignal(n) != signal.SIG_IGN]


def leave_terminal_to_coordinator() -> None:
    """For a worker process: ignore Ctrl-C, because the coordinator handles it, ends its workers and reports it once."""
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Let signals interrupt the `with` block; finished results are kept. The handlers are restored afterwards."""
    end = EndOfWork()
    before = {number: signal.signal(number, end) for number in heard(SIGNALS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, end.afterwards(handler))
        if end.error is not None:
            # Python restores the default handlers before it ends: a repetition would then change the exit code.
            atexit.register(leave_terminal_to_coordinator)


def end_if_asked(handler: object = None) -> None:
    """Raise Interrupted if a signal was received and its exception was lost.

    handler: the handler of the signals, if it was replaced meanwhile; default: the present one.
    """
    end = signal.getsignal(signal.SIGTERM) if handler is None else handler
    if isinstance(end, EndOfWork) and end.error is not None:
        raise end.error from None


@contextmanager
def tidied_at_signals(tidy: Callable[[], object]) -> Iterator[None]:
    """In the `with` block, SIGTERM and SIGHUP call `tidy` and then end this process, as they do otherwise.

    Ctrl-C and a command that handles signals unwind the block instead; its own `finally` tidies up.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        """End the processes that this one has forked, which may still write; tidy up; end by the same signal."""
        for child in multiprocessing.active_children():
            child.kill()
            child.join(LAST_SECONDS)
        tidy()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if in_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """Raise Interrupted as itself, even if Python or a library converts it to another error, as in an import.

    The same applies to Ctrl-C if compiled code handles it instead of our handler.
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
