"""Where the commands of the stages are, and how they are run: a list of arguments, without a shell."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lsdflow_command.interruption import heard
from lsdflow_contract.errors import InternalError, MissingInput, StageError, fix_of
from lsdflow_launch.shared_start import answer_of

LOG = logging.getLogger("lsdflow.run")
BIN_VARIABLE = "LSDFLOW_BIN"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def stage_command(stage: str) -> Path:
    """Return the stage's command: in $LSDFLOW_BIN, beside the called `lsdflow`, beside this Python, or on PATH.

    Raises MissingInput if it is in none of them.
    """
    folders = [os.environ.get(BIN_VARIABLE, ""), str(Path(sys.argv[0]).parent), str(Path(sys.executable).parent)]
    for folder in filter(None, folders):
        # not is_file(): it raises for a folder without permission
        if os.access(candidate := Path(folder) / stage, os.X_OK):
            return candidate.absolute()
    if found := shutil.which(stage):
        return Path(found)
    raise MissingInput(
        f"the command {stage} is not installed",
        where=f"{', '.join(filter(None, folders))} and PATH",
        fix=f"run make setup, or name the folder that holds it in {BIN_VARIABLE}",
    )


def ask_stage(stage: str, arguments: Sequence[str]) -> Any:
    """Run a stage command that prints JSON to stdout; return the parsed answer, for any exit code.

    Raises InternalError if the answer is not JSON.
    """
    started = time.monotonic()
    done = answer_of([stage_command(stage), *arguments])
    LOG.debug("$ %s    # exit code %d, %.1f s", shlex.join([stage, *arguments]), done.returncode, _since(started))
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise InternalError(
            f"{stage} {arguments[0]} gave no answer", where=stage, found=(done.stderr or done.stdout)[-2000:]
        ) from error


def error_of(answer: Mapping[str, Any]) -> StageError:
    """Return the error that a stage reported as JSON, with its exit code."""
    parts = {name: str(answer.get(name, "")) for name in ("where", "wanted", "found")} | {"fix": fix_of(answer)}
    error = StageError(str(answer.get("what") or json.dumps(answer)), **parts)
    error.exit_code = int(answer["exit_code"])
    return error


def _since(started: float) -> float:
    return time.monotonic() - started


def run_stage(stage: str, arguments: Sequence[str]) -> int:
    """Log and run a stage's command. Returns its exit code."""
    LOG.info("$ %s", shlex.join([stage, *arguments]))
    LOG.debug("%s is %s", stage, stage_command(stage))
    return run_command([str(stage_command(stage)), *arguments])


def run_command(command: Sequence[str]) -> int:
    """Run a command with its output passed through, and forward stop signals to it. Returns its exit code."""
    with subprocess.Popen(command) as child:

        def pass_on(number: int, _frame: FrameType | None) -> None:
            child.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in heard(PASSED_ON)}
        try:
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code
