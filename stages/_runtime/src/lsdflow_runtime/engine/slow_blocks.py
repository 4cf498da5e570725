"""Slow blocks: an idle worker computes them a second time, and a time-out is recorded as a failure.

A busy worker
    1. touches its file of attempts every few seconds, which shows that its process is alive
    2. ends its process if another worker has finished the block; daisy then assigns the block to a worker again, which
       finds it done
An idle worker, for which daisy has no block left
    1. reads the attempts of all workers, and ends if no block is in progress elsewhere
    2. computes a block that has taken over 3 times the median, unless another worker already repeats it

A block function is pure and a block is committed as a whole, so it does not matter which attempt ends first. The age of
an attempt compares the clocks of two machines; a wrong clock causes a needless attempt, or prevents a useful one.
Source: backup tasks (Dean and Ghemawat 2004), called `backups` in cubed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_command.attempts import KEY_LETTERS, AttemptReader
from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import StageError
from lsdflow_runtime.store.done_marks import BlockStore

LOG = logging.getLogger("lsdflow.blocks")
# A block is slow after this many times the median of the finished ones, and not before LEAST_S.
SLOWER = 3.0
LEAST_S = 30.0
# First wait of a worker without a block; it doubles each time up to POLL_S.
FIRST_POLL_S, POLL_S = 0.25, 5.0
# A process that has not touched its file of attempts for this time is lost.
LOST_AFTER_S = 3 * POLL_S
SAMPLED_RECORDS = 200
# Fraction of its time-out after which a block in progress is recorded as failed, before daisy ends its worker.
RECORDED_BEFORE_TIMEOUT = 0.9


@dataclass
class InProgress:
    """The block that a worker processes, the record of earlier attempts, and the start of this one."""

    number: int
    known: Mapping[str, Any]
    began: float = field(default_factory=time.monotonic)


@contextmanager
def blocks_watched(marks: BlockStore, attempts: Path, limit_s: float) -> Iterator[list[InProgress]]:
    """Watch the block in the list that is yielded, from one thread for all blocks of a worker.

    attempts: the worker's own file of attempts. limit_s: the time-out of a block.
    """
    in_progress: list[InProgress] = []
    stop = threading.Event()

    def watch() -> None:
        """Record a timeout before daisy ends this worker; end it if another worker finished its block."""
        recorded = finished = None
        while not stop.wait(min(POLL_S, limit_s * (1 - RECORDED_BEFORE_TIMEOUT) / 2)):
            for block in in_progress[:1]:
                age_s = time.monotonic() - block.began
                with suppress(OSError):  # a worker does not require that file
                    os.utime(attempts)
                with suppress(StageError, OSError):
                    if age_s >= LEAST_S and marks.is_done(block.number):
                        # At the first time, this attempt itself may just have written the mark.
                        if block is finished:
                            LOG.info("block %d was finished by another worker; this attempt ends", block.number)
                            os._exit(0)  # the block may be in a call that an exception does not interrupt
                        finished = block
                    if block is not recorded and age_s >= RECORDED_BEFORE_TIMEOUT * limit_s:
                        what = f"took longer than {limit_s:g} s (compute.block_timeout_s)"
                        record = {"error": "Timeout", "exit_code": 70, "what": what, **block.known}
                        marks.mark_failed(block.number, record)
                        recorded = block

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield in_progress
    finally:
        stop.set()


def slow_blocks(marks: BlockStore, runs: Path, attempts: Path, key: str, at_once: int = 1) -> Iterator[int]:
    """Numbers of blocks that take other workers too long; ends when no block is in progress elsewhere.

    runs: folder of the runs of the stage. attempts: this worker's own file of attempts. key: that of the pass.
    at_once: how many blocks share the time of a worker.
    """
    tried: set[int] = set()
    limit_s, parent = 0.0, os.getppid()
    wait_s = FIRST_POLL_S
    while os.getppid() == parent:
        end_if_asked()
        in_progress = _in_progress_elsewhere(runs, attempts, key)
        waiting = {n: ages_s for n, ages_s in in_progress.items() if n not in tried and not marks.is_done(n)}
        if not waiting:
            return
        limit_s = limit_s or _limit_s(marks, at_once)
        late = {n: ages_s[0] for n, ages_s in waiting.items() if len(ages_s) == 1 and 0 < limit_s < ages_s[0]}
        if late:
            number = max(late, key=late.__getitem__)
            tried.add(number)
            LOG.warning("block %d has been in progress for %.0f s; it is computed a second time", number, late[number])
            yield number
        else:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, POLL_S)


def _limit_s(marks: BlockStore, at_once: int) -> float:
    """Seconds after which a block is slow; 0 if no block is done yet."""
    done = sorted(marks.done())
    seconds = [marks.record(number)["seconds"] for number in done[:: max(1, len(done) // SAMPLED_RECORDS)]]
    return max(LEAST_S, SLOWER * at_once * float(np.median(seconds))) if seconds else 0.0


def _in_progress_elsewhere(runs: Path, attempts: Path, key: str) -> dict[int, list[float]]:
    """Age (s) of each attempt in progress in other live processes, by block."""
    attempts.parent.mkdir(parents=True, exist_ok=True)
    attempts.touch()
    found: dict[int, list[float]] = {}
    reader = AttemptReader(runs)
    reader.ended()
    for path, attempt in reader.under_way():
        with suppress(FileNotFoundError):
            silent_s = attempts.stat().st_mtime - path.stat().st_mtime
            if attempt.key == key[:KEY_LETTERS] and path != attempts and silent_s < LOST_AFTER_S:
                found.setdefault(attempt.block, []).append(time.time() - attempt.started)
    return found
