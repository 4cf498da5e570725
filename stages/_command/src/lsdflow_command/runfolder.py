"""The folder of one run of a stage: resolved config, log file, outcome. It is also written if the run fails."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsdflow_command.console import JsonLines
from lsdflow_command.resources import resources_taken
from lsdflow_contract.errors import InternalError, StageError, unexpected
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import disk_errors, storage_errors, write_json
from lsdflow_contract.manifest import JOB_VARIABLE, Writer

LOG_FILE = "log.txt"


@contextmanager
def run_folder(stage: str, experiment: Experiment, config: dict[str, Any]) -> Iterator[Path]:
    """Create runs/<stage>/<time>-<pid>/, log to it, and write outcome.json with exit code, seconds and error."""
    started = time.time()
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(started))}-{os.getpid()}"
    folder = experiment.layout.stage_runs(stage) / name
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    writer = Writer.of(stage).model_dump()
    write_json(folder / "config.resolved.json", {"writer": writer, "config": config, "overrides": experiment.overrides})
    handlers = log_to(folder, stage)
    outcome: dict[str, Any] = {"writer": writer, "started": started, "exit_code": 70, "error": None}
    outcome |= {"host": socket.gethostname(), "job": os.environ.get(JOB_VARIABLE, "")}
    try:
        with disk_errors(experiment.layout.root):
            yield folder
        outcome["exit_code"] = 0
    except StageError as error:
        outcome.update(exit_code=error.exit_code, error=error.as_dict())
        _note(handlers, error.message(), error if error.exit_code == InternalError.exit_code else None)
        raise
    except Exception as error:
        outcome["error"] = {"error": type(error).__name__, "what": str(error)}
        _note(handlers, "the run ended", error)
        fix = "report it with this file, which has the traceback"
        raise unexpected(error, where=folder / LOG_FILE, fix=fix) from error
    except BaseException as error:
        outcome["error"] = {"error": type(error).__name__, "what": str(error)}
        _note(handlers, "the run ended", error)
        raise
    finally:
        outcome["seconds"] = time.time() - started
        outcome["resources"] = resources_taken()
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        write_json(folder / "outcome.json", outcome)


def _note(files: list[logging.Handler], text: str, error: BaseException | None) -> None:
    """Write the outcome of the run, with the traceback of `error`, to its log files only."""
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("lsdflow", logging.ERROR, __file__, 0, text, None, trace)
    for handler in files:
        handler.handle(record)


def run_of_this_process() -> Path | None:
    """The folder of the run to which this process logs; None if it is no run."""
    files = (h for h in logging.getLogger().handlers if isinstance(h, logging.FileHandler))
    return next((Path(h.baseFilename).parent for h in files if Path(h.baseFilename).name == LOG_FILE), None)


def log_to(folder: Path, stage: str) -> list[logging.Handler]:
    """Add, and return, the handlers for the text log of a run and for the same log as JSON lines."""
    forms = {
        LOG_FILE: logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
        "events.jsonl": JsonLines(stage),
    }
    handlers: list[logging.Handler] = []
    for name, form in forms.items():
        handlers.append(logging.FileHandler(folder / name, encoding="utf-8"))
        handlers[-1].setFormatter(form)
        logging.getLogger().addHandler(handlers[-1])
    return handlers
