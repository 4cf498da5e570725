"""The passes of an export: the folder with its lock, and the worker processes that write blocks or segments.

OUT/.export/        during an export: the lock of the process that writes, keys of the layers, done marks, and the
                    segments that get meshes and skeletons (segments)
Each format records finished layers in its own metadata, which are written last. Then .export is removed.

A block (or segment) is written as whole files, depends on no other one of its pass and shares no file with one, so the
number and order of workers do not change the bytes. It is read back (compute.verify_fraction of them) before its mark
is set. If a worker is lost (killed, out of memory), its blocks are repeated. Workers end when their coordinator ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lsdflow_command.console import start_logging
from lsdflow_command.interruption import end_if_asked, interrupt_on_signals
from lsdflow_command.lock_file import stage_lock
from lsdflow_command.processes import end_with_parent
from lsdflow_command.progress import Progress
from lsdflow_contract.errors import InternalError, Interrupted, OutputConflict, StageError, StorageFailure
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors, write_json
from lsdflow_runtime.store.done_marks import DoneMarks
from lsdflow_runtime.store.packed_marks import PACK_BLOCKS

LOG = logging.getLogger("lsdflow.export")
# Stop after so many lost workers in a row if no piece was finished between the losses.
LOSSES = 3

# Writes the piece with a number and flushes it to disk (fsync); it is pickled for the workers.
Write = Callable[[int], None]


class Crew:
    """`count` worker processes for the pieces of the passes `works`; with 1, this process writes them itself."""

    def __init__(self, count: int, works: Sequence[Write]) -> None:
        self.count, self.works = count, list(works)
        self._pool: ProcessPoolExecutor | None = None
        self._others = set(multiprocessing.active_children())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Do not wait for unfinished pieces: a shard takes longer than a scheduler waits after SIGTERM.
            for child in set(multiprocessing.active_children()) - self._others:
                child.kill()
        self._dismiss()

    def written(self, work: int, numbers: Iterable[int]) -> Iterator[int]:
        """Write these pieces of one pass; yields the number of each as it is finished, in any order.

        Raises the error of a worker, or Interrupted (75) if workers are lost repeatedly without any progress.
        """
        waiting, losses = deque(numbers), 0
        if self.count == 1:
            for number in waiting:
                end_if_asked()
                self.works[work](number)
                yield number
            return
        while waiting:
            for number in self._until_lost(work, waiting):
                losses = 0
                yield number
            if waiting:
                losses += 1
                self._regret(losses)

    def _until_lost(self, work: int, waiting: deque[int]) -> Iterator[int]:
        """Assign the pieces in `waiting` to workers; if a worker is lost, its unfinished pieces return to `waiting`."""
        under_way: dict[Future[None], int] = {}
        try:
            while waiting or under_way:
                end_if_asked()
                while waiting and len(under_way) < 2 * self.count:
                    # Submit first, then remove from `waiting`: if the pool breaks here, the piece is not lost.
                    future = self._opened().submit(_write, work, waiting[0])
                    under_way[future] = waiting.popleft()
                for ended in wait(under_way, return_when=FIRST_COMPLETED).done:
                    ended.result()
                    yield under_way.pop(ended)
        except BrokenProcessPool:
            waiting.extendleft(sorted(under_way.values(), reverse=True))
            self._dismiss()

    def _regret(self, losses: int) -> None:
        if losses >= LOSSES:
            raise Interrupted(
                f"worker processes were lost {losses} times, and nothing was written meanwhile",
                found="killed, or out of memory",
                fix="run the same command again to resume; with fewer --workers, if memory is short",
            )
        LOG.warning("a worker process was lost (killed, or out of memory): what it had under way is done again")

    def _opened(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # libraries start threads, which do not survive a fork
            self._pool = ProcessPoolExecutor(self.count, context, initializer=_start, initargs=(self.works,))
        return self._pool

    def _dismiss(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class _Orders:
    """The passes that a worker process can run."""

    works: Sequence[Write] = ()


def _start(works: Sequence[Write]) -> None:
    """Set up a worker: it ends with its coordinator, and leaves Ctrl-C and the scheduler's signals to it."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    start_logging()
    _Orders.works = works


def _write(work: int, number: int) -> None:
    """Write one piece."""
    try:
        _Orders.works[work](number)
    except StageError:
        raise
    except Exception as error:
        # Exceptions of libraries may not be picklable.
        what, fix = f"internal: {type(error).__name__}: {error}", "run with --debug and report it"
        raise InternalError(what, fix=fix) from error


@dataclass(frozen=True)
class ReadBack:
    """Reads back every n-th block of a level; 1: all."""

    every: int = 1

    @classmethod
    def of_fraction(cls, fraction: float) -> ReadBack:
        """An even sample of this fraction of the blocks, as in `verify` of the stages."""
        return cls(max(1, round(1 / fraction)))

    def require(self, number: int, values: npt.NDArray[Any], read: Callable[[], npt.NDArray[Any]], where: str) -> None:
        """StorageFailure (74) if the block with this number is sampled and `read` returns other bits than `values`."""
        if number % self.every:
            return
        found = read()
        if found.dtype != values.dtype or not np.array_equal(_bits(found), _bits(values)):
            raise StorageFailure(
                "what was read back is not what was written",
                where=where,
                fix="the storage loses or changes data: run the same command again, on other storage if it stays so",
            )


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values as bits, so that nan equals nan, and 0 differs from -0."""
    return values.view(f"u{values.dtype.itemsize}")


UNDER_WAY = ".export"
NOTED = "keys.json"


@dataclass(frozen=True)
class Work:
    """A pass: pieces (blocks, segments) numbered 0 to `count` - 1, each written as a whole and independently.

    name, key: identify the done marks. folder: where the pieces are written. begin: creates the folder; True if it
    did not exist, so that all its marks are invalid. write: writes one piece and flushes it to disk (fsync); it is
    pickled for worker processes.
    """

    name: str
    key: str
    count: int
    folder: Path
    begin: Callable[[], bool]
    write: Callable[[int], None]


@contextmanager
def export_folder(out: Path, finished: Mapping[str, str] | None, keys: Mapping[str, str]) -> Iterator[Path]:
    """Lock `out` for this process; yields the folder for unfinished data.

    finished: key of each layer that `out` already holds; None if no export was ever finished there.
    Raises OutputConflict (73) if `out` holds other files or an export of other data, or if another process exports.
    """
    under_way = out / UNDER_WAY
    _require_same(under_way, finished or {}, keys)
    with storage_errors(out):
        if finished is None and not under_way.is_dir() and out.exists() and (out.is_file() or any(out.iterdir())):
            raise OutputConflict(
                "the folder to export to exists and is no export of lsdflow",
                where=out,
                wanted="a new or empty folder, or one of an earlier export",
                fix="name another folder",
            )
        under_way.mkdir(parents=True, exist_ok=True)
    with interrupt_on_signals(), stage_lock(under_way, "another process exports to this folder"):
        # Another process may have recorded its keys meanwhile.
        _require_same(under_way, finished or {}, keys)
        yield under_way


def claim(under_way: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> None:
    """Record the key of each layer before it is written. Raises OutputConflict (73) like `export_folder`."""
    write_json(under_way / NOTED, {**_require_same(under_way, finished, keys), **keys})


def close_folder(out: Path) -> None:
    """Remove the folder for unfinished data."""
    with storage_errors(out):
        shutil.rmtree(out / UNDER_WAY)


def run_works(label: str, unit: str, under_way: Path, works: list[Work], workers: int = 1) -> int:
    """Write all pieces without a done mark, pass by pass; returns how many were written."""
    open_marks = [(work, DoneMarks.of(under_way, work.name, work.key)) for work in works]
    for work, marks in open_marks:
        if work.begin():
            marks.remove_all()
    if not works:
        return 0
    total, already = sum(work.count for work in works), sum(marks.count_done() for _, marks in open_marks)
    with (
        Progress(label, total=total, unit=unit, already=already) as progress,
        Crew(min(workers, max(1, total - already)), [work.write for work in works]) as crew,
    ):
        for index, (_, marks) in enumerate(open_marks):
            _run(index, works[index], marks, crew, progress)
    return total - already


def _run(index: int, work: Work, marks: DoneMarks, crew: Crew, progress: Progress) -> None:
    done = marks.done()
    left = [number for number in range(work.count) if number not in done]
    for count, number in enumerate(crew.written(index, left), 1):
        marks.mark_done(number, {"piece": number})
        progress.advance()
        if count % PACK_BLOCKS == 0:
            marks.pack(work.count)
    _sweep(work.folder)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    with storage_errors(folder):
        for partial in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
            partial.unlink(missing_ok=True)


def _require_same(under_way: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    """All keys recorded in the folder. OutputConflict (73) if a layer of `keys` has a different key there."""
    noted = under_way / NOTED
    found = {**(read_json(noted) if noted.exists() else {}), **finished}
    other = [name for name, key in keys.items() if found.get(name, key) != key]
    if other:
        raise OutputConflict(
            f"{', '.join(other)}: another volume, or other levels of it, were exported to this folder",
            where=under_way.parent,
            wanted=f"key {keys[other[0]][:12]}",
            found=f"key {str(found[other[0]])[:12]}",
            fix="name another folder, or remove this one",
        )
    return found
