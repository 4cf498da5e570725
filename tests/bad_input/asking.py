"""Runs a command of lsdflow in this process, and says what it answered and what it changed on disk."""

from __future__ import annotations

import logging
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from unittest.mock import patch

from typer.testing import CliRunner

from lsdflow_agglomerate import cli as agglomerate
from lsdflow_evaluate import cli as evaluate
from lsdflow_launch import cli as lsdflow
from lsdflow_launch import commands
from lsdflow_predict import cli as predict
from lsdflow_prepare import cli as prepare
from lsdflow_segment import cli as segment
from lsdflow_watershed import cli as watershed

REPOSITORY = Path(__file__).resolve().parents[2]
APPS = {
    "lsdflow": lsdflow.app,
    "prepare": prepare.app,
    "predict": predict.app,
    "watershed": watershed.app,
    "agglomerate": agglomerate.app,
    "segment": segment.app,
    "evaluate": evaluate.app,
}
TRAINING = ("train-lsd", "train-acrlsd")
# A run may leave its log folder, the lock of the stage and the file of its coordinator; never a result.
NO_RESULT = ("exp/runs", "exp/store")
Snapshot = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Answer:
    """What a command answered: exit code, stdout and stderr, seconds of a core, and names of what it changed."""

    exit_code: int
    text: str
    core_seconds: float
    changed: tuple[str, ...]
    crash: str = ""


def ask(command: Sequence[str], root: Path, *, training: bool = False, unprivileged: bool = False) -> Answer:
    """Run `command` (its arguments name files below `root`).

    `training`: also ask the training stages, which are commands of another environment (1 s each).
    `unprivileged`: as a user for whom permissions count.
    """
    before, started = snapshot(root), _core_seconds()
    with _stages_answer_here(training):
        result = _without_privileges(command) if unprivileged else _invoke(command)
    seconds, after = _core_seconds() - started, snapshot(root)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    crash = result.stderr if "Traceback" in result.stderr else ""
    return Answer(result.returncode, result.stdout + result.stderr, seconds, tuple(changed), crash)


def results_changed(answer: Answer) -> list[str]:
    """What changed beyond logs and locks."""
    return [name for name in answer.changed if name != "exp" and not name.startswith(NO_RESULT)]


def snapshot(root: Path) -> Snapshot:
    """Size and time of change of everything below a folder."""
    found = {}
    for path in root.rglob("*"):
        state = path.lstat()
        found[str(path.relative_to(root))] = (state.st_size if path.is_file() else 0, state.st_mtime_ns)
    return found


def _core_seconds() -> float:
    """Seconds that this process and its children worked: what else the machine does is not counted."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _invoke(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    name, *arguments = command
    if name in TRAINING:
        path = REPOSITORY / "bin" / name
        return subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    result = CliRunner().invoke(APPS[name], arguments)
    # An exception that the application let out is what a shell would show as a traceback.
    escaped = result.exception if not isinstance(result.exception, SystemExit) else None
    text = f"Traceback: {escaped!r}\n" if escaped else ""
    return subprocess.CompletedProcess(list(command), result.exit_code, result.stdout, result.stderr + text)


def _without_privileges(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, in which root has lost the right to read and write everything."""
    rights = "-dac_override,-dac_read_search"
    drop = ["setpriv", "--bounding-set", rights, "--inh-caps", rights] if os.geteuid() == 0 else []
    called = [*drop, sys.executable, "-m", "bad_input.asking", *command]
    return subprocess.run(called, cwd=REPOSITORY / "tests", capture_output=True, text=True, check=False)


@contextmanager
def _stages_answer_here(training: bool) -> Iterator[None]:
    """`lsdflow` asks stages by their commands; here they answer in this process, one at a time."""
    lock = Lock()

    def run(command: Sequence[str | Path], **_: object) -> subprocess.CompletedProcess[str]:
        name = Path(command[0]).name
        if name in TRAINING and not training:
            return subprocess.CompletedProcess(list(command), 0, "{}" if "schema" in command else "[]", "")
        with lock:
            return _invoke([name, *map(str, command[1:])])

    with (
        patch.object(commands, "answer_of", run),
        patch.dict(os.environ, {commands.BIN_VARIABLE: str(REPOSITORY / "bin")}),
    ):
        yield


def without_paths(text: str, root: Path) -> str:
    """A message in which nothing depends on the machine: no folder, no long hash, no size of memory or disk."""
    text = text.replace(str(root.resolve()), "").replace(str(root), "")
    replaced: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r"(?<!\.)/exp/", "DIR/"),
        (r"/exp\b", "DIR"),
        (r"(?<!\.)/input\b", "INPUT"),
        (r"\b(?=\d*[a-f])[0-9a-f]{12,64}\b", "HASH"),  # keys depend on when the volumes were written
        (r"\b[0-9a-f]{12,64}\b", lambda m: m.group()[:4] + "..."),
        (r"results/(\w+)/[0-9a-f]{8}\b", r"results/\1/KEY"),
        (r"luts/[0-9a-f]{8}\b", r"luts/GRAPH"),
        (r"\d+\.\d GB", "N GB"),
        (r"\buid \d+", "uid N"),
        (r"\d{8}T\d{6}-\d+", "TIME"),
        (r"\d{2}:\d{2}:\d{2} ", ""),
    ]
    for pattern, new in replaced:
        text = re.sub(pattern, new, text)
    return text


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger().setLevel(logging.ERROR)
    with _stages_answer_here(training=False):
        done = _invoke(sys.argv[1:])
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
