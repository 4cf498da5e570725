"""A block that runs into its time-out leaves a word: daisy ends its worker, which could not say what it was at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_runtime.done_marks import BlockStore

# The part of its time-out after which a block that is still at work is noted as failed.
NOTED_BEFORE_TIMEOUT = 0.9


@dataclass
class UnderWay:
    """The block that a worker is at, what is known of earlier attempts, and when it began."""

    number: int
    known: Mapping[str, Any]
    began: float = field(default_factory=time.monotonic)


@contextmanager
def overdue_noted(marks: BlockStore, limit_s: float) -> Iterator[list[UnderWay]]:
    """Note shortly before its time-out that a block takes too long: then daisy ends this process, without a word.

    Yields where the worker tells what it is at. One thread looks after all blocks: to start one takes longer than a
    small block.
    """
    under_way: list[UnderWay] = []
    what = f"took longer than {limit_s:g} s (compute.block_timeout_s)"
    stop = threading.Event()

    def look() -> None:
        noted = None
        while not stop.wait(limit_s * (1 - NOTED_BEFORE_TIMEOUT) / 2):
            for block in under_way[:1]:
                if block is not noted and time.monotonic() - block.began >= NOTED_BEFORE_TIMEOUT * limit_s:
                    record = {"error": "Timeout", "exit_code": 70, "what": what, **block.known}
                    with suppress(StageError, OSError):
                        marks.mark_failed(block.number, record)
                        noted = block

    threading.Thread(target=look, daemon=True).start()
    try:
        yield under_way
    finally:
        stop.set()
