"""Writers of blocks that fail in a worker process, in the ways that workers do. Workers import this module."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lsdflow_contract.errors import StorageFailure
from lsdflow_runtime.blocks import Block
from lsdflow_view.export.passes import ExportPass, PassRunner, Write

Open = Callable[[], AbstractContextManager[Write]]


class OddError(Exception):
    """Made of two things: it does not survive pickling."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


@contextmanager
def killed_once(open_: Open, flag: Path) -> Iterator[Write]:
    """The process is killed once, after a block was written and before its done mark."""
    with open_() as write:

        def write_and_die(block: Block) -> None:
            write(block)
            # One step, so that exactly one of several workers makes it.
            with suppress(FileExistsError):
                flag.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

        yield write_and_die


@contextmanager
def full(_: Open) -> Iterator[Write]:
    """No space left."""

    def write(_: Block) -> None:
        raise StorageFailure("writing failed: No space left on device", where="here", fix="free some space")

    yield write


@contextmanager
def odd(_: Open) -> Iterator[Write]:
    """An error of a library."""

    def write(_: Block) -> None:
        raise OddError("odd", 3)

    yield write


def change_passes(monkeypatch: pytest.MonkeyPatch, change: Callable[[ExportPass], ExportPass]) -> None:
    """Let every PassRunner run changed passes, whose workers can import this module."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    plain = PassRunner._run
    monkeypatch.setattr(PassRunner, "_run", lambda runner, pass_: plain(runner, change(pass_)))


def kill_one_worker_of_each_pass(monkeypatch: pytest.MonkeyPatch, flags: Path) -> None:
    """In each pass of several blocks, one worker process is killed."""

    def change(pass_: ExportPass) -> ExportPass:
        if len(pass_.plan) == 1:
            return pass_
        return replace(pass_, open=partial(killed_once, pass_.open, flags / pass_.name), in_process=1)

    change_passes(monkeypatch, change)
