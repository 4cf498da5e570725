"""How numeric loops of the block stages are compiled: no interpreter lock, and once per machine instead of per process.

Compiling takes a worker seconds. numba is a dependency of the stages that have such loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from lsdflow_command.code_cache import has_code_cache

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call, or take what an earlier process compiled."""
    from numba import njit

    return cast(F, njit(nogil=True, cache=has_code_cache())(function))
