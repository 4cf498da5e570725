"""Regions of the config as boxes of the target grid, and how a box is cut to be read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

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
