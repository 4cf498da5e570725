"""Progress of long work: a bar with rate and ETA on a terminal, one line a minute everywhere else."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from lsdflow_command.loudness import is_quiet

LOG = logging.getLogger("lsdflow.progress")
SECONDS_BETWEEN_LINES = 60.0


class Progress:
    """Counts `unit`s done of `total`; `already` were done by an earlier run and do not count for the rate.

    seconds: the work ends after these if it has not ended before.
    """

    def __init__(self, label: str, total: int, unit: str, already: int = 0, seconds: float | None = None) -> None:
        self.label, self.total, self.unit, self.already, self.seconds = label, total, unit, already, seconds
        self.done = already
        self.started = time.monotonic()
        self._last_line = self.started
        self._bar = _terminal_bar() if sys.stderr.isatty() and not is_quiet() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.already, facts="")
        else:
            LOG.info("%s: %d of %d %ss already done", self.label, self.already, self.total, self.unit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        LOG.info("%s", self.line())

    def advance(self, count: int = 1, **facts: float) -> None:
        """Add `count` units done; `facts` (loss=...) are shown beside them."""
        self.done += count
        text = " ".join(f"{name} {value:.4g}" for name, value in facts.items())
        now = time.monotonic()
        if self._bar is not None:
            rate = f"{self.rate():.3g} {self.unit}/s{self._eta()} {text}"
            self._bar.update(self._task, completed=self.done, facts=rate)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            LOG.info("%s %s", self.line(), text)

    def rate(self) -> float:
        """Units per second of this run."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        return (self.done - self.already) / seconds

    def line(self) -> str:
        """One line: done, rate, ETA."""
        return f"{self.label}: {self.done}/{self.total} {self.unit}s, {self.rate():.3g} {self.unit}/s{self._eta()}"

    def _eta(self) -> str:
        rate, left = self.rate(), self.total - self.done
        if rate <= 0 or left <= 0:
            return ""
        seconds = left / rate
        if self.seconds is not None:
            seconds = min(seconds, max(self.seconds - (time.monotonic() - self.started), 0.0))
        return f", ETA {_duration(seconds)}"


def _terminal_bar() -> RichProgress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    return RichProgress(*columns, console=Console(stderr=True))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}" if hours else f"{minutes}m{rest:02d}s"
