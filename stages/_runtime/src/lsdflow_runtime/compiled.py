"""Compiled code in block functions: numeric loops (numba), and libraries that print (waterz)."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from lsdflow_command.code_cache import has_code_cache

F = TypeVar("F", bound=Callable[..., object])
STDOUT = 1
_one_at_a_time = threading.RLock()


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call, or load the code that an earlier process compiled.

    The function runs without the interpreter lock. Compiling takes seconds, once per machine instead of once per
    process. numba is a dependency of the stages that have such loops.
    """
    from numba import njit

    return cast(F, njit(nogil=True, cache=has_code_cache())(function))


@contextlib.contextmanager
def silent_stdout() -> Iterator[None]:
    """Discard everything that is written to standard output within the block.

    The file descriptor is replaced because C++ writes to it, and `sys.stdout` because the Python part of such a library
    does. The descriptor belongs to the whole process, so the block must be short. Threads wait for each other.
    """
    with _one_at_a_time:
        sys.stdout.flush()
        stdout = os.dup(STDOUT)
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, STDOUT)
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            os.dup2(stdout, STDOUT)
            os.close(stdout)
            os.close(null)
