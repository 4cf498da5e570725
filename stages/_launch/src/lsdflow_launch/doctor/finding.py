"""One finding of the doctor: ok, a warning, or a problem to fix before a run; with the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """subject: what was checked. FAIL: a run would fail, or its results could not be trusted."""

    state: State
    subject: str
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for --json."""
        return asdict(self)

    def line(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.state:>4}  {self.subject}: {self.found}" + (f"\n      fix: {self.fix}" if self.fix else "")


def ok(subject: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding("ok", subject, found)


def warn(subject: str, found: str, fix: str = "") -> Finding:
    """Return a finding with a limitation; a run is possible."""
    return Finding("warn", subject, found, fix)


def fail(subject: str, found: str, fix: str) -> Finding:
    """Return a finding that would make a run fail."""
    return Finding("FAIL", subject, found, fix)
