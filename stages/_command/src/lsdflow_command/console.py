"""The output of a command on stderr: format of log lines, verbosity, and colour.

form      text, or one JSON object per line ([compute] log_format or LSDFLOW_LOG); events.jsonl of a run is JSON
loudness  quiet (errors only), normal, verbose (also debugging messages). It is stored in the environment, so that
          stages and workers that a command starts use the same; the log file of a run does not depend on it
colour    on a terminal only. NO_COLOR (not empty) turns it off everywhere, FORCE_COLOR (not empty) turns it on also in
          a pipe; NO_COLOR has priority
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

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


class _Outlasting:
    """A stream whose reader may leave; what is written after that is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As in every stream."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """As in every stream."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """Write to nowhere from now on, also what the stream still holds."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def stdout_outlasts_its_reader() -> Iterator[None]:
    """Within the block, a reader of stdout that leaves (`| head`) does not end the command."""
    lasting = _Outlasting(sys.stdout)
    try:
        with redirect_stdout(cast("TextIO", lasting)):
            yield
    finally:
        lasting.flush()


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON. Messages about a block use extra={"block": number}."""

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
    """The formatter for stderr: as `wanted`, else from the environment, else text."""
    if (wanted or environment.get(FORM_VARIABLE, "")) == JSON:
        return JsonLines(stage)
    return logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")


def loudness() -> str:
    """quiet, normal or verbose."""
    word = os.environ.get(LOUDNESS_VARIABLE, NORMAL)
    return word if word in LEVELS else NORMAL


def is_quiet() -> bool:
    """True if only errors and results are wanted."""
    return loudness() == "quiet"


def set_loudness(word: str) -> None:
    """Set the verbosity of this process and of processes that it starts."""
    os.environ[LOUDNESS_VARIABLE] = word
    _apply()


def start_logging() -> None:
    """Log to stderr, in the same format everywhere, with the verbosity of the environment."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(log_formatter())
        handler.set_name(_HANDLER)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    logging.getLogger("numexpr").setLevel(logging.WARNING)  # it reports its number of threads, which means nothing here
    _apply()


def form_log_lines(wanted: str | None, stage: str) -> None:
    """Format the lines of a stage on stderr as its experiment sets; see log_formatter."""
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setFormatter(log_formatter(wanted, stage))


def _apply() -> None:
    """Apply the verbosity: quiet affects stderr only; debugging messages are those of lsdflow, not of libraries."""
    level = LEVELS[loudness()]
    for handler in logging.getLogger().handlers:
        if handler.get_name() == _HANDLER:
            handler.setLevel(level)
    logging.getLogger("lsdflow").setLevel(logging.DEBUG if level == logging.DEBUG else logging.NOTSET)


def coloured(stream: TextIO) -> bool:
    """True if output to `stream` may contain colour."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, role: Role, stream: TextIO) -> str:
    """The text, in the colour of its role if `stream` allows colour."""
    return f"\x1b[{_CODES[role]}m{text}\x1b[0m" if text and coloured(stream) else text


def error_text(message: str, stream: TextIO) -> str:
    """`error: ` and the message of an error, with its fix highlighted."""
    painted = _PARTS.sub(lambda found: paint(found[1], "next", stream), message)
    return f"{paint('error:', 'error', stream)} {painted}"
