"""Progress of long computations: a bar with rate and ETA on a terminal, elsewhere a line after 3 s, then per minute.

If a run has a monitor, each new Progress is registered there for the metrics (monitoring.py).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lsdflow_command.attempts import AttemptReader
from lsdflow_command.console import is_quiet
from lsdflow_contract.experiment import Experiment

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LOG = logging.getLogger("lsdflow.progress")
SECONDS_TO_FIRST_LINE = 3.0
SECONDS_BETWEEN_LINES = 60.0


class Progress:
    """Counts finished `unit`s of `total`; `already` were finished by an earlier run and do not count for the rate.

    seconds: time limit of the run.  gauges: values for the metrics only, by name (metrics.GAUGES).  failed: number of
    failed units, set by the caller and shown with the finished ones; so is under_way, the sum of what is done of units
    that have not finished.
    """

    def __init__(self, label: str, total: int, unit: str, already: int = 0, seconds: float | None = None) -> None:
        self.label, self.total, self.unit, self.already, self.seconds = label, total, unit, already, seconds
        self.done = already
        self.failed = 0
        self.under_way = 0.0
        self.facts: Mapping[str, float] = {}
        self.parts: Mapping[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.started = time.monotonic()
        self._ended: float | None = None
        self._next_line = self.started + SECONDS_TO_FIRST_LINE
        self._logged: tuple[int, int] | None = None
        self._bar = _terminal_bar() if sys.stderr.isatty() and not is_quiet() else None

    def __enter__(self) -> Self:
        if (monitor := MONITOR.get()) is not None:
            monitor.progress = self
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.already, facts="")
        else:
            LOG.info("%s: %d of %d %ss already done", self.label, self.already, self.total, self.unit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        if self._bar is not None:
            self._bar.stop()
        if self._logged != (self.done, self.failed):
            LOG.info("%s", self.line())

    def advance(self, count: int = 1, parts: Mapping[str, float] | None = None, **facts: float) -> None:
        """Add `count` finished units; `facts` (loss=...) are shown with them, their `parts` only in the metrics."""
        self.done += count
        self.facts, self.parts = facts, parts or {}
        text = " ".join(f"{name} {value:.4g}" for name, value in facts.items())
        now = time.monotonic()
        if self._bar is not None:
            rate = f"{self._failed()}{self.rate():.3g} {self.unit}/s{self._eta()} {text}"
            self._bar.update(self._task, completed=self.done + self.under_way, facts=rate)
        elif now >= self._next_line:
            self._next_line = now + SECONDS_BETWEEN_LINES
            self._logged = self.done, self.failed
            LOG.info("%s", f"{self.line()} {text}".rstrip())

    def rate(self) -> float:
        """Units per second of this run."""
        now = time.monotonic() if self._ended is None else self._ended
        return (self.done + self.under_way - self.already) / max(now - self.started, 1e-9)

    def line(self) -> str:
        """One line: done, failed if any, rate, ETA."""
        finished = f"{self.done + self.under_way:.1f}" if self.under_way >= 0.05 else self.done
        done = f"{self.label}: {finished}/{self.total} {self.unit}s"
        return f"{done}, {self._failed()}{self.rate():.3g} {self.unit}/s{self._eta()}"

    def eta_s(self) -> float | None:
        """Seconds until all units or the time limit are reached; None if nothing remains or the rate is unknown."""
        rate, left = self.rate(), self.total - self.done - self.under_way
        if rate <= 0 or left <= 0:
            return None
        if self.seconds is None:
            return left / rate
        return min(left / rate, max(self.seconds - (time.monotonic() - self.started), 0.0))

    def _failed(self) -> str:
        return f"{self.failed} failed, " if self.failed else ""

    def _eta(self) -> str:
        seconds = self.eta_s()
        return "" if seconds is None else f", ETA {_duration(seconds)}"


def _terminal_bar() -> RichProgress:
    from rich.console import Console  # both take a fifth of the time in which a command starts
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    return RichProgress(*columns, console=Console(stderr=True, force_terminal=True))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}" if hours else f"{minutes}m{rest:02d}s"


@dataclass
class Monitor:
    """The state of a running stage for its metrics.

    attempts: those of all processes at its blocks. run_pid: the process whose memory, time and bytes are reported,
    together with all processes below it. handed_over: another process reports this run.
    """

    stage: str
    experiment: Experiment
    attempts: AttemptReader
    run_pid: int = field(default_factory=os.getpid)
    handed_over: bool = False
    started: float = field(default_factory=time.time)
    progress: Progress | None = None
    exit_code: int | None = None
    metrics: Any = None  # created by monitoring at its first use
    port: int = 0
    stop_serving: Callable[[], None] = lambda: None


# The monitor of this thread's run, with which Progress registers.
MONITOR: ContextVar[Monitor | None] = ContextVar("MONITOR", default=None)
# Takes the share of its block, 0 to 1, that a block function has done; None where nobody shows it.
REPORT: ContextVar[Callable[[float], None] | None] = ContextVar("REPORT", default=None)
