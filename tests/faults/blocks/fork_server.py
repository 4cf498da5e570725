"""Runs stages in forked children, so that each costs no start of Python: a line of JSON in, a line of JSON out.

    {"do": "start", "stage", "arguments", "log", "point", "nth"}  ->  {"pid"}       the stage's command in a child
    {"do": "wait", "pid"}                                         ->  {"status"}    exit code, or -signal

`point` and `nth`: the child kills itself with SIGKILL when it comes to a named place of a block's commit for the nth
time. The places are reached by wrapping functions of the product here; the product knows nothing of it.
"""

from __future__ import annotations

import errno
import functools
import importlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsdflow_agglomerate import task as _agglomerate  # noqa: F401 - imported once, here, for all children
from lsdflow_runtime import daisy_runner as _daisy_runner  # noqa: F401
from lsdflow_runtime.done_marks import DoneMarks
from lsdflow_runtime.rag_store import FilesRagStore
from lsdflow_runtime.volumes import Volume
from lsdflow_segment import task as _segment  # noqa: F401
from lsdflow_watershed import task as _watershed  # noqa: F401

# point -> (class, methods), and whether it lies before the call or after it
POINTS: dict[str, tuple[type, tuple[str, ...], bool]] = {
    "before chunks": (Volume, ("write",), True),
    "after chunks": (Volume, ("write",), False),
    "before rows": (FilesRagStore, ("write_nodes", "write_edges"), True),
    "after rows": (FilesRagStore, ("write_nodes", "write_edges"), False),
    "before mark": (DoneMarks, ("mark_done",), True),
    "after mark": (DoneMarks, ("mark_done",), False),
    "before rename": (Path, ("replace",), True),
    "after rename": (Path, ("replace",), False),
}
SLOW = "slow"
# No space left from the nth rename on; one rename in a hundred fails, seeded by nth.
DISK_FULL, DISK_FLAKY = "disk full", "disk flaky"


def arm(point: str, nth: int) -> None:
    """Let this process die at the nth coming to a point; or slow it down (nth ms a block), or its disk fail."""
    if point == SLOW:
        _wrap(DoneMarks, "mark_done", functools.partial(time.sleep, nth / 1000), before=True)
        return
    if point in (DISK_FULL, DISK_FLAKY):
        _wrap(Path, "replace", _disk_fault(point, nth), before=True)
        return
    owner, names, before = POINTS[point]
    left = [nth]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in names:
        _wrap(owner, name, count, before=before)


def _disk_fault(point: str, nth: int) -> Callable[[], None]:
    chance, renames = random.Random(nth), itertools.count(1)

    def fail() -> None:
        number = next(renames)
        if point == DISK_FULL and number >= nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if point == DISK_FLAKY and chance.random() < 0.01:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fail


def _wrap(owner: type, name: str, act: Callable[[], None], *, before: bool) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before:
            act()
        result = inner(*arguments, **named)
        if not before:
            act()
        return result

    setattr(owner, name, wrapped)


def _start(stage: str, arguments: list[str], log: str, point: str, nth: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (0, 1, 2):
            os.dup2(output if descriptor else os.open(os.devnull, os.O_RDONLY), descriptor)
        if point:
            arm(point, nth)
        importlib.import_module(f"lsdflow_{stage}.cli").app(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os._exit(code)


def main() -> None:
    """Answer commands until standard input ends."""
    for line in sys.stdin:
        told = json.loads(line)
        if told["do"] == "start":
            answer = {"pid": _start(told["stage"], told["arguments"], told["log"], told["point"], told["nth"])}
        else:
            status = os.waitpid(told["pid"], 0)[1]
            answer = {"status": os.waitstatus_to_exitcode(status)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
