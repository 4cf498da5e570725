"""The processes that write the pieces of an export: each takes one piece after another, whole files only.

coordinator: holds the folder, hands out numbers, marks what comes back  ->  workers: make, write, read back a piece

A piece is pure and its files are its own, so any number of workers and any order leave the same bytes. A worker that
is lost (killed, out of memory) costs what it had under way; workers end with their coordinator, however that ends.
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
# Times that workers may be lost one after another without any piece done meanwhile.
LOSSES = 3

# Writes the piece with a number, to last a loss of power; it travels to the workers.
Write = Callable[[int], None]


class Crew:
    """`count` worker processes for the pieces of `works`; 1: this process does them, one after another."""

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
            # What is under way is not waited for: a shard takes longer than a scheduler waits after SIGTERM.
            for child in set(multiprocessing.active_children()) - self._others:
                child.kill()
        self._dismiss()

    def written(self, work: int, numbers: Iterable[int]) -> Iterator[int]:
        """Let these pieces of a work be written; yields the number of each that is, in whatever order.

        Raises what a worker raised, Interrupted (75) if workers are lost again and again.
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
        """Hand out `waiting`; what was under way when a worker was lost is put back there."""
        under_way: dict[Future[None], int] = {}
        try:
            while waiting or under_way:
                end_if_asked()
                while waiting and len(under_way) < 2 * self.count:
                    # Handed out, then taken: a pool that breaks here takes none.
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
            context = multiprocessing.get_context("spawn")  # libraries have threads, which no fork survives
            self._pool = ProcessPoolExecutor(self.count, context, initializer=_start, initargs=(self.works,))
        return self._pool

    def _dismiss(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class _Orders:
    """What a worker process was started for."""

    works: Sequence[Write] = ()


def _start(works: Sequence[Write]) -> None:
    """A worker begins: it ends with its coordinator, which alone listens to Ctrl-C and to the scheduler."""
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
        # Errors of libraries may not survive the way to the coordinator.
        what, fix = f"internal: {type(error).__name__}: {error}", "run with --debug and report it"
        raise InternalError(what, fix=fix) from error
