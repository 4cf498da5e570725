"""Pieces of work that go wrong in a worker process, in the ways that workers do. Workers import this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StorageFailure
from lsdflow_view.export.passes import Work, run_works

Write = Callable[[int], None]


class OddError(Exception):
    """Made of two things: it does not survive pickling."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


def note(folder: Path, number: int) -> None:
    """A piece that leaves a file, with the process that wrote it."""
    (folder / str(number)).write_text(str(os.getpid()))


def note_and_stay(folder: Path, number: int) -> None:
    """The same, but it takes long."""
    note(folder, number)
    time.sleep(120)


class LateNote:
    """A piece that reaches a worker only when the coordinator is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        coordinator = os.getppid()
        (self.folder / str(os.getpid())).touch()
        while os.getppid() == coordinator:
            time.sleep(0.05)

    def __call__(self, number: int) -> None:
        note(self.folder, number)


def note_in_spite_of_a_key(folder: Path, number: int) -> None:
    """Ctrl-C at a terminal reaches every process of a command."""
    os.kill(os.getpid(), signal.SIGINT)
    note(folder, number)


def die_at(folder: Path, fatal: int, number: int) -> None:
    """Killed at one piece, each time."""
    if number == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    note(folder, number)


def written_then_killed(write: Write, flag: Path, number: int) -> None:
    """Killed once, when the piece is written and nobody knows it yet; beside it lies what an earlier kill left."""
    write(number)
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def full(_: int) -> None:
    """No space left."""
    raise StorageFailure("writing failed: No space left on device", where="here", fix="free some space")


def odd(_: int) -> None:
    """An error of a library."""
    raise OddError("odd", 3)


def with_writes(change: Callable[[Work], Write]) -> Callable[..., int]:
    """run_works, with the writing of every work changed."""

    def run(label: str, unit: str, under_way: Path, works: list[Work], workers: int = 1) -> int:
        changed: list[Any] = [replace(work, write=change(work)) for work in works]
        return run_works(label, unit, under_way, changed, workers)

    return run


def killed_once(flag: Path) -> Callable[..., int]:
    """run_works, in which one worker is killed."""
    return with_writes(lambda work: partial(written_then_killed, work.write, flag))


def killed_once_each(flags: Path) -> Callable[..., int]:
    """run_works, in which one worker is killed in each work that several pieces make one of several processes."""
    return with_writes(
        lambda work: partial(written_then_killed, work.write, flags / work.name) if work.count > 1 else work.write
    )
