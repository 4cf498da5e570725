"""The worker processes that write the pieces (blocks, segments) of an export; a piece is written as whole files.

coordinator: locks the folder, assigns numbers, sets done marks  ->  workers: compute, write, read back a piece

A piece depends on no other piece and shares no file with one, so the number and order of workers do not change the
bytes. If a worker is lost (killed, out of memory), its pieces are repeated. Workers end when their coordinator ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self

from lsdflow_command.console import start_logging
from lsdflow_command.interruption import end_if_asked
from lsdflow_command.processes import end_with_parent
from lsdflow_contract.errors import InternalError, Interrupted, StageError

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
