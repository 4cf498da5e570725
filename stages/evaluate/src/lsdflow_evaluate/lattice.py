"""A coarse lattice of a volume that is too large to be read at once: every k-th voxel of a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Vox3
from lsdflow_runtime.blocks import pieces


def strided(read: Callable[[Box], NDArray[Any]], chunk_shape_vox: Vox3, box: Box, step: Vox3) -> NDArray[np.uint64]:
    """Every step-th voxel of what `read` gives inside the box, read chunk by chunk."""
    begin = np.array(box.begin_vox)
    lattice = np.zeros([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)], np.uint64)
    for part in pieces(box, chunk_shape_vox):
        first = [-(-int(b) // s) for b, s in zip(np.array(part.begin_vox) - begin, step, strict=True)]
        last = [-(-int(e) // s) for e, s in zip(np.array(part.end_vox) - begin, step, strict=True)]
        if any(f >= e for f, e in zip(first, last, strict=True)):
            continue
        local = [f * s + int(o) - b for f, s, o, b in zip(first, step, begin, part.begin_vox, strict=True)]
        values = read(part)[tuple(slice(a, None, s) for a, s in zip(local, step, strict=True))]
        lattice[tuple(slice(f, e) for f, e in zip(first, last, strict=True))] = values
    return lattice
