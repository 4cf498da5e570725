"""What a command prints on stderr: the form of its log lines, how many of them, and colour.

form      for people, or one JSON object a line ([compute] log_format or LSDFLOW_LOG); events.jsonl of a run is JSON
loudness  quiet (errors alone), normal, verbose (also what helps to find faults). It is kept in the environment, so that
          stages and workers that a command starts print as much as it does; the log file of a run does not depend on it
colour    on a terminal and nowhere else. NO_COLOR (not empty) turns it off everywhere, FORCE_COLOR (not empty) turns
          it on also in a pipe; NO_COLOR is stronger
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from lsdflow_contract.manifest import JOB_VARIABLE

FORM_VARIABLE = "LSDFLOW_LOG"
JSON = "json"
LOUDNESS_VARIABLE = "LSDFLOW_LOUDNESS"
NORMAL = "normal"
LEVELS = {"quiet": logging.ERROR, NORMAL: logging.INFO, "verbose": logging.DEBUG}
_HANDLER = "lsdflow-stderr"
Role = Literal["error", "warning", "good", "weak", "next"]
_CODES: dict[Role, str] = {"error": "31;1", "warning": "33", "good": "32", "weak": "2", "next": "36"}
_PARTS = re.compile(r"^( *fix:)", re.MULTILINE)


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Who logs of a block passes extra={"block": number}."""

    def __init__(self, stage: str = "") -> None:
        super().__init__()
        self.stage, self.host, self.job = stage, socket.gethostname(), os.environ.get(JOB_VARIABLE, "")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "stage": self.stage,
            "host": self.host,
            "job": self.job,
            "block": getattr(record, "block", None),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def log_formatter(
    wanted: str | None = None, stage: str = "", environment: Mapping[str, str] = os.environ
) -> logging.Formatter:
    """The form of lines on stderr: as `wanted`, else as the environment says, else for people."""
    if (wanted or environment.get(FORM_VARIABLE, "")) == JSON:
        return JsonLines(stage)
    return logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")


def loudness() -> str:
    """quiet, normal or verbose."""
    word = os.environ.get(LOUDNESS_VARIABLE, NORMAL)
    return word if word in LEVELS else NORMAL


def is_quiet() -> bool:
    """True where only errors and results are wanted."""
    return loudness() == "quiet"


def set_loudness(word: str) -> None:
    """Tell as much as `word` says from now on, here and in what is started from here."""
    os.environ[LOUDNESS_VARIABLE] = word
    _apply()


def start_logging() -> None:
    """Log lines to stderr, the same form everywhere, as loud as the environment says."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(log_formatter())
        handler.set_name(_HANDLER)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    _apply()


def form_log_lines(wanted: str | None, stage: str) -> None:
    """Lines of a stage on stderr in the form that its experiment wants; see log_formatter."""
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setFormatter(log_formatter(wanted, stage))


def _apply() -> None:
    """Quiet is a matter of stderr alone; what is for finding faults comes from lsdflow, not from its libraries."""
    level = LEVELS[loudness()]
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setLevel(level)
    logging.getLogger("lsdflow").setLevel(logging.DEBUG if level == logging.DEBUG else logging.NOTSET)


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
