"""One line of the doctor: fine, to be known, or to be mended before a run; and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """subject: what was looked at. FAIL: a run would fail, or its results could not be trusted."""

    state: State
    subject: str
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """For --json."""
        return asdict(self)

    def line(self) -> str:
        """As people read it."""
        return f"{self.state:>4}  {self.subject}: {self.found}" + (f"\n      fix: {self.fix}" if self.fix else "")


def ok(subject: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", subject, found)


def warn(subject: str, found: str, fix: str = "") -> Finding:
    """A run works, but not for all that may be wanted."""
    return Finding("warn", subject, found, fix)


def fail(subject: str, found: str, fix: str) -> Finding:
    """A run would fail."""
    return Finding("FAIL", subject, found, fix)
