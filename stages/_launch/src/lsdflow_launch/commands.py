"""Where the commands of the stages are, and how they are run: a list of arguments, without a shell.

Starting Python and loading numpy, pydantic, typer and zarr takes longer than many of a stage's answers, and `init`,
`validate` and `doctor` run up to twenty commands. A command of this same Python therefore runs in a fork of one process
that has already loaded the libraries of all commands: the installed command runs unchanged, in a separate process, with
the environment and the working folder of the caller. A command of another Python (the trainings, a container) is
started as an ordinary program.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import FrameType
from typing import Any

from lsdflow_command.interruption import heard
from lsdflow_command.processes import LAUNCHER_VARIABLE, tied_to_this_process
from lsdflow_contract.errors import InternalError, Interrupted, MissingInput, StageError
from lsdflow_contract.experiment import STAGES, TRAININGS

LOG = logging.getLogger("lsdflow.run")
# How stages begin a warning.
WARNING = "warning: "
BIN_VARIABLE = "LSDFLOW_BIN"
# A command that has not ended this long after a signal is killed; its finished blocks and checkpoints are kept.
KILL_AFTER_SECONDS = 60.0
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
# Run a stage command with these arguments: for its answer, parsed from JSON; or for its exit code.
Ask = Callable[[str, Sequence[str]], Any]
Call = Callable[[str, Sequence[str]], int]


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
        fix=f"make setup in a clone, or pip install lsdflow-{stage}; folders not on PATH: {BIN_VARIABLE}=FOLDER",
    )


def stages_here() -> list[str]:
    """Return the stages, without trainings that are not installed: they have an environment of their own."""
    return [stage for stage in STAGES if stage not in TRAININGS or _is_installed(stage)]


def _is_installed(stage: str) -> bool:
    try:
        stage_command(stage)
    except MissingInput:
        return False
    return True


def ask_stage(stage: str, arguments: Sequence[str]) -> Any:
    """Run a stage command that prints JSON to stdout; return the parsed answer, for any exit code.

    Raises MissingInput if the command cannot be started, Interrupted if it was killed, InternalError if its answer is
    not JSON.
    """
    started = time.monotonic()
    command = stage_command(stage)
    try:
        done = answer_of([command, *arguments])
    except OSError as error:
        raise _not_started(command, error) from error
    LOG.debug("$ %s    # exit code %d, %.1f s", shlex.join([stage, *arguments]), done.returncode, _since(started))
    for line in done.stderr.splitlines():
        _warn_once(line.partition(WARNING)[2])
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        if done.returncode < 0 or done.returncode > 128:
            raise _killed(f"{stage} {arguments[0]}", done.returncode) from error
        raise InternalError(
            f"{stage} {arguments[0]} gave no answer", where=stage, found=(done.stderr or done.stdout)[-2000:]
        ) from error


def _killed(command: str, code: int) -> Interrupted:
    """The error of a command that a signal ended; `code` as of subprocess, or as of a shell."""
    number = -code if code < 0 else code - 128
    return Interrupted(
        f"{command} was killed before it answered",
        found=f"signal {number}" + (" (often: too little memory)" if number == signal.SIGKILL else ""),
        fix="run the same command again, with more memory if it was too little",
    )


@cache
def _warn_once(text: str) -> None:
    """Log a warning of a stage once, although several of its commands may print it."""
    if text:
        LOG.warning("%s%s", WARNING, text)


def error_of(answer: Mapping[str, Any]) -> StageError:
    """Return the error that a stage reported as JSON, with its exit code."""
    parts = {name: str(answer.get(name, "")) for name in ("where", "wanted", "found", "fix")}
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


def run_stage_for_answer(stage: str, arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """As run_stage, for a command that prints JSON to stdout. Returns its exit code and its answer.

    The answer of a command that was killed, or that printed something else, is an error with its exit code.
    """
    LOG.info("$ %s", shlex.join([stage, *arguments]))
    code, output = _run([str(stage_command(stage)), *arguments], subprocess.PIPE)
    try:
        return code, dict(json.loads(output))
    except (ValueError, TypeError):
        code = code or InternalError.exit_code
        return code, {"what": f"{stage} ended without an answer", "found": f"exit code {code}", "exit_code": code}


def run_command(command: Sequence[str]) -> int:
    """Run a command with its output passed through, and forward stop signals to it. Returns its exit code.

    A command that does not end within KILL_AFTER_SECONDS of a stop signal is killed. Raises MissingInput if it cannot
    be started.
    """
    return _run(command)[0]


def _run(command: Sequence[str], stdout: int | None = None) -> tuple[int, bytes]:
    """Run a command, which ends with this process. Returns its exit code and, for subprocess.PIPE, its output."""
    with ExitStack() as waiting:
        try:
            stdin, environment = waiting.enter_context(tied_to_this_process()), os.environ | {LAUNCHER_VARIABLE: "1"}
            started = subprocess.Popen(command, stdin=stdin, stdout=stdout, env=environment)
        except OSError as error:
            raise _not_started(Path(command[0]), error) from error
        child = waiting.enter_context(started)

        def pass_on(number: int, _frame: FrameType | None) -> None:
            """Forward a signal to the command, and give it time to end."""
            child.send_signal(number)
            timer = threading.Timer(KILL_AFTER_SECONDS, child.kill)
            timer.daemon = True
            timer.start()
            waiting.callback(timer.cancel)

        before = {number: signal.signal(number, pass_on) for number in heard(PASSED_ON)}
        try:
            output, _ = child.communicate()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    code = child.returncode
    return code if code >= 0 else 128 - code, output or b""


def _not_started(command: Path, error: OSError) -> MissingInput:
    """The error of a command that exists but does not start: its Python was removed, or it is no program."""
    return MissingInput(
        f"the command {command.name} cannot be started",
        where=str(command),
        found=error.strerror or str(error),
        fix="install it again (make setup for a command of lsdflow)",
    )


@cache
def _forks() -> ForkServerContext:
    """Return the shared process, which starts with the first command."""
    context = multiprocessing.get_context("forkserver")
    # Modules that a fork finds loaded; with this module alone, each fork would load numpy, pydantic and zarr.
    context.set_forkserver_preload(["lsdflow_launch.cli", "zarr"])
    return context


def answer_of(command: Sequence[str | Path], limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; return its exit code and output.

    Raises OSError if it cannot be started, subprocess.TimeoutExpired after `limit_s`; the process is then killed, but
    not waited for, because a process that waits for a dead file server cannot end.
    """
    words = [str(word) for word in command]
    if of_this_python(Path(words[0])):
        try:
            return _answer_in_fork(words, limit_s)
        # No space for the answer, a socket name that is too long, or the shared process was killed.
        except (OSError, EOFError) as error:
            LOG.debug("%s is started by itself: %s", words[0], error)
    return _answer_of_program(words, limit_s)


def ask_program(command: Sequence[str], limit_s: float = 15.0) -> tuple[str, str]:
    """Run a program that may hang or not be installed; return its output, and why there is none, or ""."""
    try:
        done = answer_of(command, limit_s)
    except FileNotFoundError:
        return "", f"no {command[0]} here"
    except OSError as error:
        return "", f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"no answer within {limit_s:.0f} s"
    if done.returncode:
        return done.stdout, (done.stderr.strip() or done.stdout.strip())[-300:] or f"exit code {done.returncode}"
    return done.stdout, ""


def of_this_python(command: Path) -> bool:
    """Return True for a script that this Python runs, without options: one that a package installs beside it."""
    try:
        with command.open("rb") as file:
            first = file.readline(4096).decode(errors="replace").strip()
    except OSError:
        return False
    return command.is_absolute() and first == f"#!{sys.executable}" and os.access(command, os.X_OK)


def _answer_of_program(words: list[str], limit_s: float | None) -> subprocess.CompletedProcess[str]:
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=limit_s)
    except BaseException:  # too late, or a signal to this process
        child.kill()
        raise
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def _answer_in_fork(words: list[str], limit_s: float | None) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="lsdflow-", ignore_cleanup_errors=True) as name:
        answers = Path(name)
        child = _forks().Process(target=_act_as, args=(words, dict(os.environ), str(Path.cwd()), answers))
        child.start()
        try:
            child.join(limit_s)
            late = child.is_alive()
        finally:  # also after a signal to this process
            child.kill()
        if late:
            raise subprocess.TimeoutExpired(words, limit_s or 0)
        out, err, code = (_text(answers / part) for part in ("out", "err", "code"))
    if not code and (child.exitcode or 0) >= 0:
        raise OSError("its answer could not be kept: the temporary folder is full, or lost")
    # A child that was killed leaves no code.
    return subprocess.CompletedProcess(words, int(code or child.exitcode or 1), out, err)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _act_as(words: list[str], environment: Mapping[str, str], folder: str, answers: Path) -> None:
    """Run the command in the fork. Its exit code is written last."""
    if not answers.is_dir():  # the shared process was killed, and the caller asks in another way
        return
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(answers / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    code: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    (answers / "code").write_text(str(code if isinstance(code, int) else int(code is not None)), encoding="ascii")
