"""The unit of traced skeletons: converts positions to nm, and checks that they are inside the volume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry
from lsdflow_evaluate.scores.run_length import Skeletons

Unit = Literal["nm", "um", "vox"]
SETTING = "evaluate.skeleton_unit"
# Skeletons with this share of their nodes inside the volume fit it: neurons may leave it.
FITTING = 0.5


def in_nm(read: Skeletons, unit: Unit | None, grid: Geometry, where: object) -> Skeletons:
    """Skeletons whose positions are in `unit` (None: nm, if nothing fits better), with positions in nm.

    Raises BadData (65) if no node is inside the volume. Without a given unit, also if at least half of the nodes are
    inside when read in another unit, because positions in micrometres or voxels, read as nm, are near the first voxel.
    """
    positions = {name: _positions_nm(read.positions_nm, name, grid) for name in ("nm", "um", "vox")}
    inside = {name: _share_inside(values, grid) for name, values in positions.items()}
    chosen = unit or "nm"
    fits = [name for name, share in inside.items() if name != chosen and share >= FITTING]
    if inside[chosen] and (unit or not fits):
        return Skeletons(positions[chosen], read.neurons, read.edges)
    low, high = (_text(edge(positions[chosen], axis=0)) for edge in (np.min, np.max))
    begin, end = _text(grid.offset_nm), _text(grid.position_nm(grid.shape_vox))
    better = [f'{SETTING} = "{name}" ({inside[name]:.0%} of the nodes are then inside)' for name in fits]
    fixes = better or [f"export them in the coordinates of the volume, or set {SETTING} to their unit (nm, um, vox)"]
    fixes += [f'{SETTING} = "{chosen}" if they are'] if inside[chosen] else []
    raise BadData(
        f"the skeletons do not seem to be in {chosen}",
        where=where,
        wanted=f"z, y, x within ({begin}) to ({end}) nm, the extent of the volume",
        found=f"{len(read.neurons)} nodes from ({low}) to ({high}) nm, {inside[chosen]:.0%} of them inside",
        fix="; or ".join(fixes),
    )


def _positions_nm(values: NDArray[np.float64], unit: str, grid: Geometry) -> NDArray[np.float64]:
    """Positions (n, 3) in nm. A whole number of voxels is the middle of this voxel, counted from the first one."""
    if unit == "vox":
        return np.asarray((values + 0.5) * np.array(grid.voxel_size_nm) + np.array(grid.offset_nm), np.float64)
    return values * {"nm": 1.0, "um": 1e3}[unit]


def _share_inside(positions_nm: NDArray[np.float64], grid: Geometry) -> float:
    begin, end = np.array(grid.offset_nm), np.array(grid.position_nm(grid.shape_vox))
    return float(((positions_nm >= begin) & (positions_nm < end)).all(axis=1).mean())


def _text(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
