"""One finding of the doctor, and calls of other programs with a time limit, even if the kernel cannot end the program.

A process that waits for a dead file server cannot be killed; it is abandoned.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lsdflow_contract.errors import MissingInput
from lsdflow_launch.commands import answer_of, stage_command

State = Literal["ok", "warn", "FAIL"]
QUICK_S = 15.0
# Loading torch from a slow network disk takes long.
STAGE_S = 90.0


@dataclass(frozen=True)
class Finding:
    """subject: what was checked. FAIL: a run would fail, or its results could not be trusted."""

    state: State
    subject: str
    found: str
    fix: str = ""

    def line(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.state:>4}  {self.subject}: {self.found}" + (f"\n      fix: {self.fix}" if self.fix else "")


# Of what was checked, what was found, and the fix. warn: a run is possible.
ok, warn, fail = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "FAIL")


@dataclass(frozen=True)
class Answer:
    """The output of a program. problem: why there is none: not installed, time limit, or its own error message."""

    out: str = ""
    problem: str = ""
    here: bool = True


def ask_program(command: Sequence[str], limit_s: float = QUICK_S) -> Answer:
    """Run a program for at most `limit_s` seconds."""
    if shutil.which(command[0]) is None:
        return Answer(problem=f"no {command[0]} here", here=False)
    try:
        done = answer_of(command, limit_s)
    except OSError as error:
        return Answer(problem=f"cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer within {limit_s:.0f} s")
    if done.returncode:
        words = done.stderr.strip() or done.stdout.strip()
        return Answer(done.stdout, problem=words[-300:] or f"exit code {done.returncode}")
    return Answer(done.stdout)


def ask_stage_in_time(stage: str, arguments: Sequence[str], limit_s: float = STAGE_S) -> dict[str, Any]:
    """Return the JSON answer of a stage command; {"problem": why} if there is none."""
    try:
        command = str(stage_command(stage))
    except MissingInput as error:
        return {"problem": error.what}
    answer = ask_program([command, *arguments], limit_s)
    try:
        facts: dict[str, Any] = json.loads(answer.out)
    except json.JSONDecodeError:
        return {"problem": answer.problem or "no answer"}
    return {"problem": facts["what"]} if "exit_code" in facts else facts
