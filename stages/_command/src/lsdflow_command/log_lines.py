"""The form of log lines: for people, or one JSON object a line with time, level, stage, host, job, block and message.

[compute] log_format or LSDFLOW_LOG says which; events.jsonl of a run's folder is JSON whatever they say.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime

from lsdflow_contract.manifest import JOB_VARIABLE

VARIABLE = "LSDFLOW_LOG"
JSON = "json"


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Who logs of a block passes extra={"block": number}."""

    def __init__(self, stage: str = "") -> None:
        super().__init__()
        self.stage, self.host, self.job = stage, socket.gethostname(), os.environ.get(JOB_VARIABLE, "")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told: dict[str, object] = {
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
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def log_formatter(
    wanted: str | None = None, stage: str = "", environment: Mapping[str, str] = os.environ
) -> logging.Formatter:
    """The form of lines on stderr: as `wanted`, else as the environment says, else for people."""
    if (wanted or environment.get(VARIABLE, "")) == JSON:
        return JsonLines(stage)
    return logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
