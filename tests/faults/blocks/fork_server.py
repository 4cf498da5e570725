"""Runs stages in forked children, so that each costs no start of Python: a line of JSON in, a line of JSON out.

    {"do": "here", "stage", "arguments", "log"}                            ->  {"status"}  in this process: warms it
    {"do": "start", "stage", "arguments", "log", "harm", "environment"}    ->  {"pid"}     the command in a child
    {"do": "wait", "pid", "seconds"}      ->  {"status"}  exit code, -signal, or null: it hung, and was killed

`harm`: what the child does to itself (injections.py).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from forked_workers import fork_daisy_workers, fork_joined_workers
from injections import arm

from lsdflow_agglomerate import stage as _agglomerate  # noqa: F401 - imported once, here, for all children
from lsdflow_evaluate import stage as _evaluate  # noqa: F401
from lsdflow_predict import stage as _predict  # noqa: F401
from lsdflow_runtime.engine import daisy_runner as _daisy_runner  # noqa: F401
from lsdflow_segment import stage as _segment  # noqa: F401
from lsdflow_watershed import stage as _watershed  # noqa: F401


def _here(request: dict[str, Any]) -> int:
    with _output_to(request["log"]):
        return _command(request["stage"], request["arguments"])


@contextmanager
def _output_to(log: str) -> Iterator[None]:
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    try:
        yield
    finally:
        for descriptor in (1, 2):
            os.dup2(kept[descriptor - 1], descriptor)
            os.close(kept[descriptor - 1])


def _command(stage: str, arguments: list[str]) -> int:
    try:
        importlib.import_module(f"lsdflow_{stage}.cli").app(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _start(request: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (0, 1, 2):
            os.dup2(output if descriptor else os.open(os.devnull, os.O_RDONLY), descriptor)
        os.environ.update(request["environment"])
        arm(request["harm"])
        _fork_what_is_started(request["arguments"])
        code = _command(request["stage"], request["arguments"])
    finally:
        os._exit(code)


def _fork_what_is_started(arguments: list[str]) -> None:
    if {"compute.runner=daisy", "compute.runner=cluster"} & set(arguments):
        fork_daisy_workers()
    if arguments[0] == "worker":
        fork_joined_workers()


def _wait(pid: int, seconds: float) -> int | None:
    watched = os.pidfd_open(pid)
    try:
        ended = select.select([watched], [], [], seconds)[0]
    finally:
        os.close(watched)
    if not ended:
        # The whole session: the command's workers too.
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if ended else None


def main() -> None:
    """Answer commands until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "here":
            answer = {"status": _here(request)}
        elif request["do"] == "start":
            answer = {"pid": _start(request)}
        else:
            answer = {"status": _wait(request["pid"], request["seconds"])}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
