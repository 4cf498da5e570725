"""Run commands of this same Python in forks of one process that has already loaded the libraries of all commands.

Starting Python and loading numpy, pydantic, typer and zarr takes longer than many of a stage's answers, and `init`,
`validate` and `doctor` run up to twenty commands. The installed command runs unchanged, in a separate process, with the
environment and the working folder of the caller. A command of another Python (the trainings, a container) is started
as an ordinary program.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

LOG = logging.getLogger("lsdflow.run")


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
        except OSError as error:  # no space for the answer, or the socket name of the shared process is too long
            LOG.debug("%s is started by itself: %s", words[0], error)
    return _answer_of_program(words, limit_s)


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
    except subprocess.TimeoutExpired:
        child.kill()
        raise
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def _answer_in_fork(words: list[str], limit_s: float | None) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="lsdflow-", ignore_cleanup_errors=True) as name:
        told = Path(name)
        child = _forks().Process(target=_act_as, args=(words, dict(os.environ), str(Path.cwd()), told))
        child.start()
        child.join(limit_s)
        if child.is_alive():
            child.kill()
            raise subprocess.TimeoutExpired(words, limit_s or 0)
        out, err, code = (_text(told / part) for part in ("out", "err", "code"))
    if not code and (child.exitcode or 0) >= 0:
        raise OSError("its answer could not be kept: the temporary folder is full, or lost")
    # A child that was killed leaves no code.
    return subprocess.CompletedProcess(words, int(code or child.exitcode or 1), out, err)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _act_as(words: list[str], environment: Mapping[str, str], folder: str, told: Path) -> None:
    """Run the command in the fork. Its exit code is written last."""
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(told / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
    (told / "code").write_text(str(code if isinstance(code, int) else int(code is not None)), encoding="ascii")
