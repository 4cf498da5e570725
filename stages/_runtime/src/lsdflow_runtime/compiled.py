"""How numeric loops of the block stages are compiled: no interpreter lock, and once per machine instead of per process.

Compiling takes a worker seconds. It is kept on disk only where NUMBA_CACHE_DIR names a folder that can be written to:
images have a read-only root, and nothing is written beside the installed package. numba is a dependency of the stages
that have such loops.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call, or take what an earlier process compiled."""
    from numba import njit

    return cast(F, njit(nogil=True, cache=_has_cache_folder())(function))


def _has_cache_folder() -> bool:
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    if not folder:
        return False
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
