"""Colour on a terminal and nowhere else: never in a pipe or a log file, whatever the text says.

NO_COLOR (not empty) turns it off everywhere, FORCE_COLOR (not empty) turns it on also in a pipe; NO_COLOR is stronger.
"""

from __future__ import annotations

import os
import re
from typing import Literal, TextIO

Role = Literal["error", "warning", "good", "weak", "next"]
_CODES: dict[Role, str] = {"error": "31;1", "warning": "33", "good": "32", "weak": "2", "next": "36"}
_PARTS = re.compile(r"^( *to do:)", re.MULTILINE)


def coloured(stream: TextIO) -> bool:
    """Whether what is written to `stream` may hold colour."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, role: Role, stream: TextIO) -> str:
    """The text in the colour of its role where `stream` takes colour, else the text."""
    return f"\x1b[{_CODES[role]}m{text}\x1b[0m" if text and coloured(stream) else text


def error_text(message: str, stream: TextIO) -> str:
    """`error: ` and the message of an error, with what to do standing out."""
    painted = _PARTS.sub(lambda found: paint(found[1], "next", stream), message)
    return f"{paint('error:', 'error', stream)} {painted}"
