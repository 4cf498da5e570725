"""Faults that a child process injects into itself. Functions of the product are wrapped here; it has no code for this.

{"before mark": 7}      SIGKILL when this place of a commit is reached for the 7th time (POINTS: eight of them)
{"slow": 30}            every block takes 30 ms longer
{"at once": 3}          no fault: each worker has three blocks at once, as on a GPU
{"disk full": 5}        no space left from the 5th rename on;   {"disk flaky": 1}: one in a hundred fails, seed 1
{"lock": 1.5}           locks expire after 1.5 s
{"clock": -3600}        time.time() is an hour late;   {"clock back": 40}: steps back an hour at the 40th reading
{"poison": [3, "crash"]}   block 3 raises, crashes, hangs, or is killed as if memory had run out, each time
{"deaths": [11, FILE]}  each commit kills its process with a chance of 15 %, seed 11; a byte in FILE for each
{"stop": [[3], FOLDER]}      stop (SIGSTOP) in block 3, once; the process number is left in FOLDER/3
{"stop in": [[3], FOLDER]}   stop when the chunks of block 3 are about to be written, once
{"cut off": [[3], FOLDER]}   lose the coordinator in block 3, once, and finish it when another process has
{"acknowledged": FILE}  note every write that the store acknowledged
{"contract": 3}         be a program of another contract
"""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import random
import signal
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_command import lock_file
from lsdflow_contract import manifest
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine import block_task, blockwise
from lsdflow_runtime.engine.block_task import BlockTask, Share
from lsdflow_runtime.io.volumes import Volume
from lsdflow_runtime.store.done_marks import DoneMarks
from lsdflow_runtime.store.mongo_rag import MongoRagStore
from lsdflow_runtime.store.mongo_store import MongoBlocks
from lsdflow_runtime.store.rag_store import FilesRagStore

MARKS, RAGS, ROWS = (
    (DoneMarks, MongoBlocks),
    (FilesRagStore, MongoRagStore),
    ("write_nodes", "write_edges", "write_overlaps"),
)
# point -> (classes, methods), and whether it is before the call or after it
POINTS: dict[str, tuple[tuple[type, ...], tuple[str, ...], bool]] = {
    "before chunks": ((Volume,), ("write",), True),
    "after chunks": ((Volume,), ("write",), False),
    "before rows": (RAGS, ROWS, True),
    "after rows": (RAGS, ROWS, False),
    "before mark": (MARKS, ("mark_done",), True),
    "after mark": (MARKS, ("mark_done",), False),
    "before rename": ((Path,), ("replace",), True),
    "after rename": ((Path,), ("replace",), False),
}
DEATH_RATE = 0.15
HOUR_S = 3600.0
LATE_S = 30.0
SPARED_PORTS_VARIABLE = "LSDFLOW_FAULT_SPARED_PORTS"


def arm(harm: dict[str, Any]) -> None:
    """Wrap what the faults need in this process; its forked workers inherit it."""
    for name, value in harm.items():
        if name in POINTS:
            _die_at(name, int(value))
        else:
            _HARMS[name](value)


def _die_at(point: str, nth: int) -> None:
    owners, names, before = POINTS[point]
    left = [nth]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner in owners:
        for name in names:
            _wrap(owner, name, count, before=before)


def _slow(milliseconds: float) -> None:
    for owner in MARKS:
        _wrap(owner, "mark_done", functools.partial(time.sleep, milliseconds / 1000), before=True)


def _at_once(blocks: int) -> None:
    BlockTask.shared = property(lambda task: Share(task.compute.workers, blocks))  # type: ignore[assignment]


def _disk_full(nth: int) -> None:
    renames = itertools.count(1)

    def fail() -> None:
        if next(renames) >= nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _wrap(Path, "replace", fail, before=True)


def _disk_flaky(seed: int) -> None:
    chance = random.Random(seed)

    def fail() -> None:
        if chance.random() < 0.01:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    _wrap(Path, "replace", fail, before=True)


def _lock(seconds: float) -> None:
    lock_file.EXPIRY_SECONDS, lock_file.RENEWAL_SECONDS = seconds, seconds / 10


def _clock(ahead_s: float) -> None:
    true = time.time
    time.time = lambda: true() + ahead_s


def _clock_back(nth: int) -> None:
    true, readings = time.time, itertools.count(1)
    time.time = lambda: true() - (HOUR_S if next(readings) >= nth else 0)


def _poison(arguments: list[Any]) -> None:
    number, kind, path = arguments
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def act(_task: BlockTask, block: Block) -> None:
        if block.number != number:
            return
        os.write(file, b"x")
        if kind == "raises":
            msg = "poisoned on purpose"
            raise ValueError(msg)
        if kind == "hangs":
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGSEGV if kind == "crashes" else signal.SIGKILL)

    _in_block(act)


def _deaths(arguments: list[Any]) -> None:
    seed, path = arguments
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    chances: dict[int, random.Random] = {}

    def act(_task: BlockTask, _block: Block) -> None:
        pid = os.getpid()
        if chances.setdefault(pid, random.Random(f"{seed} {pid}")).random() < DEATH_RATE:
            os.write(file, b"x")
            os.kill(pid, signal.SIGKILL)

    _in_block(act)


def _stop(arguments: list[Any]) -> None:
    def act(_task: BlockTask, block: Block) -> None:
        if _is_first(arguments, block):
            os.kill(os.getpid(), signal.SIGSTOP)

    _in_block(act)


def _stop_in_write(arguments: list[Any]) -> None:
    inner = block_task._write_checked

    def write(volume: Volume, block: Block, *rest: Any) -> str:
        if _is_first(arguments, block):
            os.kill(os.getpid(), signal.SIGSTOP)
        return inner(volume, block, *rest)

    block_task._write_checked = write


def _cut_off(arguments: list[Any]) -> None:
    """Lose every connection but those to the store in a block; continue when another worker has finished it."""

    def act(task: BlockTask, block: Block) -> None:
        if not _is_first(arguments, block):
            return
        _shut_connections(set(map(int, os.environ.get(SPARED_PORTS_VARIABLE, "").split())))
        end = time.monotonic() + LATE_S
        while block.number not in task.marks.done() and time.monotonic() < end:
            time.sleep(0.02)

    _in_block(act)


def _is_first(arguments: list[Any], block: Block) -> bool:
    """True for the first process that comes to one of the blocks; it leaves its number there."""
    numbers, folder = arguments
    if block.number not in numbers:
        return False
    try:
        descriptor = os.open(Path(folder) / str(block.number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(str(os.getpid()))
    return True


def _shut_connections(spared_ports: set[int]) -> None:
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[1] not in spared_ports:
                    connection.shutdown(socket.SHUT_RDWR)


def _acknowledged(path: str) -> None:
    """A line after each acknowledged write: one write of a few bytes to a file opened for appending is whole."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def wrap(owner: type, name: str) -> None:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def noted(self: Any, *arguments: Any) -> Any:
            result = inner(self, *arguments)
            block = next(a for a in arguments if isinstance(a, int))
            os.write(file, (json.dumps({"did": name, "block": block}) + "\n").encode())
            return result

        setattr(owner, name, noted)

    wrap(MongoBlocks, "mark_done")
    for name in ROWS:
        wrap(MongoRagStore, name)


def _contract(major: int) -> None:
    manifest.CONTRACT_MAJOR = str(major)
    manifest.KEY_MAJOR = major


def _in_block(act: Callable[[BlockTask, Block], None]) -> None:
    """Act when a block is computed and nothing of it written yet; once in each process and block."""
    inner = blockwise.commit_block

    def commit(task: BlockTask, opened: Any, block: Block, *rest: Any) -> Any:
        act(task, block)
        return inner(task, opened, block, *rest)

    blockwise.commit_block = commit


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


_HARMS: dict[str, Callable[[Any], None]] = {
    "slow": _slow,
    "at once": _at_once,
    "disk full": _disk_full,
    "disk flaky": _disk_flaky,
    "lock": _lock,
    "clock": _clock,
    "clock back": _clock_back,
    "poison": _poison,
    "deaths": _deaths,
    "stop": _stop,
    "stop in": _stop_in_write,
    "cut off": _cut_off,
    "acknowledged": _acknowledged,
    "contract": _contract,
}
