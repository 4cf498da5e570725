"""Tables of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text that a cell shows as it is."""
    return re.sub(r"([|*_`$\[\]<>\\])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Text in the letters of a program, for a cell."""
    return f"`{text}`".replace("|", "\\|") if text else ""
