"""How the numeric loops of this package are compiled: one thread, no interpreter lock, C-like division.

Compiling takes a few seconds once per process. It is kept on disk only where the user names a folder for it with
NUMBA_CACHE_DIR: images have a read-only root, and nothing is written beside the installed package.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

# sums may be reordered and fused; infinities and NaN keep their meaning
_FAST = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call."""
    decorate = numba.njit(nogil=True, error_model="numpy", fastmath=_FAST, cache=_has_cache_folder())
    return cast(F, decorate(function))


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
