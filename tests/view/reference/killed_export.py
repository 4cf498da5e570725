"""An export in a process of its own that is killed (SIGKILL) in the middle of a piece."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from lsdflow_runtime.store.done_marks import DoneMarks


def killed_after(pieces: int, export: Callable[[], object]) -> bool:
    """True if `export` was killed: when `pieces` were marked done, and the next was written but has no mark yet."""
    process = multiprocessing.get_context("fork").Process(target=_export, args=(pieces, export))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _export(pieces: int, export: Callable[[], object]) -> None:
    mark_done, marked = DoneMarks.mark_done, []

    def mark_or_die(marks: DoneMarks, number: int, record: dict[str, Any]) -> None:
        if len(marked) == pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        marked.append(number)
        mark_done(marks, number, record)

    DoneMarks.mark_done = mark_or_die  # type: ignore[method-assign]
    export()
