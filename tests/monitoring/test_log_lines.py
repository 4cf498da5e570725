"""Lines of the log: for people, or JSON if the environment or the experiment says so; events.jsonl is always JSON."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from lsdflow_command.console import JsonLines, log_formatter
from lsdflow_command.runfolder import run_folder
from lsdflow_contract.errors import InternalError

from .conftest import make_experiment


def _record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("lsdflow.blocks")
    return logger.makeRecord("lsdflow.blocks", logging.WARNING, "f", 1, message, values, None, extra=dict(extra))


@pytest.mark.parametrize(
    ("option", "environment", "is_json"),
    [(None, "", False), (None, "json", True), ("json", "", True), ("text", "json", False), (None, "text", False)],
)
def test_the_experiment_says_the_form_else_the_environment(option: str | None, environment: str, is_json: bool) -> None:
    form = log_formatter(option, "watershed", {"LSDFLOW_LOG": environment})
    assert isinstance(form, JsonLines) == is_json


def test_a_line_has_every_field_whatever_the_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSDFLOW_JOB", "17 restart 1")
    line = JsonLines("watershed").format(_record('two\nlines, "quotes" and µ: %s', {1}, block=3))
    assert "\n" not in line
    record = json.loads(line)
    datetime.fromisoformat(record.pop("time"))
    assert record == {
        "level": "WARNING",
        "stage": "watershed",
        "host": socket.gethostname(),
        "job": "17 restart 1",
        "block": 3,
        "logger": "lsdflow.blocks",
        "message": 'two\nlines, "quotes" and µ: {1}',
    }


def test_events_of_a_run_are_its_log_and_a_fault_has_its_traceback(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0)

    def work() -> float:
        with run_folder("watershed", experiment, {}):
            logging.getLogger("lsdflow.blocks").warning("block %d", 7, extra={"block": 7})
            return 1 / 0

    with pytest.raises(InternalError, match="ZeroDivisionError"):
        work()
    (folder,) = experiment.layout.stage_runs("watershed").iterdir()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(event["message"], event["block"]) for event in events] == [("block 7", 7), ("the run ended", None)]
    assert "ZeroDivisionError" in events[1]["traceback"]
    assert len((folder / "log.txt").read_text().splitlines()) > 2


def test_quiet_reports_errors_and_no_warnings() -> None:
    code = (
        "import logging; from lsdflow_command.console import set_loudness, start_logging; start_logging();"
        "set_loudness('quiet'); logging.warning('careful'); logging.error('broken')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("broken" in done.stderr, "careful" in done.stderr) == (True, False)
