"""Compile the numeric loops of this package: one thread, no interpreter lock, C-like division.

Compilation takes a few seconds, once per process, or once per machine with a code cache (lsdflow_command).
`python -m lsdflow_training.compiled` fills the code cache (NUMBA_CACHE_DIR) ahead of a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from lsdflow_command.code_cache import has_code_cache

F = TypeVar("F", bound=Callable[..., object])
# sums may be reordered and fused; infinities and NaN are handled exactly
_FAST = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Decorator: compile `function` at its first call."""
    decorate = numba.njit(nogil=True, error_model="numpy", fastmath=_FAST, cache=has_code_cache())
    return cast(F, decorate(function))


def compile_everything() -> None:
    """Compile all loops; takes some seconds at the first call of a process."""
    from lsdflow_training.augmentation import cpu
    from lsdflow_training.targets import lsd_cpu

    lsd_cpu.warm_up()
    field = cpu.upsample_field(np.zeros((3, 2, 2, 2), np.float32), (2, 2, 2))
    cpu.gather_linear(np.zeros((2, 2, 2), np.float32), field)
    for dtype in (np.uint8, np.uint64):
        cpu.gather_nearest(np.zeros((2, 2, 2), dtype), field)


if __name__ == "__main__":
    compile_everything()
