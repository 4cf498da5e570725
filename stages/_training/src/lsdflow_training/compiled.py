"""Compile the numeric loops of this package: one thread, no interpreter lock, C-like division.

Compilation takes a few seconds, once per process, or once per machine with a code cache (lsdflow_command).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

from lsdflow_command.code_cache import has_code_cache

F = TypeVar("F", bound=Callable[..., object])

# sums may be reordered and fused; infinities and NaN are handled exactly
_FAST = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call."""
    decorate = numba.njit(nogil=True, error_model="numpy", fastmath=_FAST, cache=has_code_cache())
    return cast(F, decorate(function))
