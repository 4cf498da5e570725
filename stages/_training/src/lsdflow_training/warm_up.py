"""Compile the numeric loops once, before worker processes are forked: they inherit the result.

`python -m lsdflow_training.warm_up` fills the code cache (NUMBA_CACHE_DIR) ahead of a training.
"""

from __future__ import annotations

import numpy as np

from lsdflow_training.data import deformation
from lsdflow_training.targets import lsd_cpu


def compile_everything() -> None:
    """Compile all loops; takes some seconds at the first call of a process."""
    lsd_cpu.warm_up()
    field = deformation.upsample_field(np.zeros((3, 2, 2, 2), np.float32), (2, 2, 2))
    deformation.gather_linear(np.zeros((2, 2, 2), np.float32), field)
    for dtype in (np.uint8, np.uint64):
        deformation.gather_nearest(np.zeros((2, 2, 2), dtype), field)


if __name__ == "__main__":
    compile_everything()
