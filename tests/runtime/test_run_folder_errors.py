"""The log of a run holds the whole error that ended it; stderr shows it once, without the traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = """
[experiment]
name = "a"
mode = "mtlsd"
profile = "tiny"
"""
# A stage whose run ends with what RAISED says.
STAGE = """
import sys
from lsdflow_command.app import StageCommand, stage_app
from lsdflow_contract.errors import BadData
from lsdflow_contract.model import StrictModel
from lsdflow_watershed.stage import Watershed

class Config(StrictModel):
    pass

def run(stage, experiment):
    raise {raised}

if __name__ == "__main__":
    Watershed.run = run
    stage_app(StageCommand("watershed", Config))()
"""
FAULT = 'ZeroDivisionError("by zero")'
REFUSAL = 'BadData("damaged", where="here", found="zeros")'


def ended(folder: Path, raised: str, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The command of a stage that raises, and the folder of its run."""
    (folder / "ending.py").write_text(STAGE.format(raised=raised))
    (folder / "experiment.toml").write_text(EXPERIMENT)
    words = [sys.executable, str(folder / "ending.py"), "run", "-e", str(folder / "experiment.toml"), *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ})
    (log,) = folder.glob("runs/watershed/*/log.txt")
    return done, log.parent


@pytest.mark.parametrize("options", [[], ["--debug"]])
def test_an_internal_error_names_the_log_with_its_traceback_and_prints_it_only_with_debug(
    tmp_path: Path, options: list[str]
) -> None:
    done, run = ended(tmp_path, FAULT, *options)
    assert done.returncode == 70
    assert "internal: ZeroDivisionError: by zero" in done.stderr
    assert str(run / "log.txt") in done.stderr
    assert ("Traceback" in done.stderr) == bool(options)
    assert "Traceback" in (run / "log.txt").read_text()
    assert json.loads((run / "outcome.json").read_text())["error"] == {"error": "ZeroDivisionError", "what": "by zero"}


def test_a_refusal_is_whole_in_both_logs_and_once_on_stderr(tmp_path: Path) -> None:
    done, run = ended(tmp_path, REFUSAL)
    assert done.returncode == 65
    assert done.stderr.count("damaged") == 1
    log = (run / "log.txt").read_text()
    assert all(part in log for part in ("damaged", "where: here", "found: zeros"))
    assert "Traceback" not in log
    (event,) = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert event["level"] == "ERROR"
    assert event["message"].startswith("damaged\n")


def test_an_internal_error_is_json_with_json(tmp_path: Path) -> None:
    done, run = ended(tmp_path, FAULT, "--json")
    answer = json.loads(done.stdout)
    assert (answer["exit_code"], answer["where"]) == (70, str(run / "log.txt"))


@pytest.mark.parametrize(
    ("raised", "named"), [('OSError(5, "Input/output error")', ""), ('OSError(28, "No space left", "x/y")', "x/y")]
)
def test_an_error_of_the_disk_that_nothing_else_has_named_is_a_storage_failure(
    tmp_path: Path, raised: str, named: str
) -> None:
    done, run = ended(tmp_path, raised)
    assert done.returncode == 74
    assert (named or str(tmp_path)) in done.stderr
    assert json.loads((run / "outcome.json").read_text())["error"]["error"] == "StorageFailure"


def test_a_missing_file_that_nothing_else_has_named_stays_an_internal_error(tmp_path: Path) -> None:
    assert ended(tmp_path, 'FileNotFoundError(2, "No such file")')[0].returncode == 70
