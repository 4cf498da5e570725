"""Regions of the config as boxes of the target grid, and how a box is cut to be read in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_evaluate.config import RegionConfig
from lsdflow_runtime.blocks import BlockPlan


def region_box(region: RegionConfig | None, grid: Geometry, whole: Box, field: str) -> Box:
    """The box of config key `field` on the target grid; `whole` if none is given. ConfigError if it leaves `whole`."""
    if region is None:
        return whole
    box = Box(
        region.begin.to_vox(grid.voxel_size_nm, f"{field}.begin"),
        region.shape.to_vox(grid.voxel_size_nm, f"{field}.shape"),
    )
    if box.is_empty or not whole.contains(box):
        raise ConfigError(f"{field} does not lie inside the data", wanted=f"inside {whole}", found=str(box))
    return box


def pieces(box: Box, shape_vox: Vox3) -> Iterator[Box]:
    """The box cut into pieces of at most `shape_vox`, row-major; nothing for an empty box."""
    return iter(()) if box.is_empty else (block.write for block in BlockPlan(box, shape_vox).blocks())


def strided(read: Callable[[Box], NDArray[Any]], chunk_shape_vox: Vox3, box: Box, step: Vox3) -> NDArray[np.uint64]:
    """Every step-th voxel of what `read` gives inside the box, read piece by piece."""
    begin = np.array(box.begin_vox)
    lattice = np.zeros([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)], np.uint64)
    for piece in pieces(box, chunk_shape_vox):
        first = [-(-int(b) // s) for b, s in zip(np.array(piece.begin_vox) - begin, step, strict=True)]
        last = [-(-int(e) // s) for e, s in zip(np.array(piece.end_vox) - begin, step, strict=True)]
        if any(f >= e for f, e in zip(first, last, strict=True)):
            continue
        local = [f * s + int(o) - b for f, s, o, b in zip(first, step, begin, piece.begin_vox, strict=True)]
        taken = read(piece)[tuple(slice(a, None, s) for a, s in zip(local, step, strict=True))]
        lattice[tuple(slice(f, e) for f, e in zip(first, last, strict=True))] = taken
    return lattice
