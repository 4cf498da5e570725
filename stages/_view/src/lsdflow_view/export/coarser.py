"""One block of a coarser level, computed in eighths from the finer level, so that only one block is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Box
from lsdflow_view.export.downsample import Reduction, whole_bins
from lsdflow_view.export.pyramid import Level, pieces

Read = Callable[[Box], npt.NDArray[Any]]


def coarser_values(read: Read, box: Box, level: Level, finer: Level, reduction: Reduction) -> npt.NDArray[Any]:
    """The values of `box` of `level`; `read` reads from the finer level."""
    made: npt.NDArray[Any] | None = None
    for piece in pieces(box):
        values = read(level.finer_box(piece, finer.box))
        reduced = reduction(whole_bins(values, *level.cut_voxels(piece, finer.box)), level.step)
        if made is None:
            made = np.empty((*values.shape[:-3], *box.shape_vox), values.dtype)
        made[(..., *piece.slices(box.begin_vox))] = reduced
    if made is None:
        msg = f"an empty box has no values: {box}"
        raise ValueError(msg)
    return made
