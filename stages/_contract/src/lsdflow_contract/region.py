"""A part of the target as the experiment file names it, and the box of voxels that it is."""

from __future__ import annotations

from pydantic import Field

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, LengthsField, Nm3
from lsdflow_contract.model import StrictModel


class RegionConfig(StrictModel):
    """A part of the target: where it begins, from the target's first voxel, and how large it is."""

    begin: LengthsField = Field(
        description='first corner, z,y,x, relative to the first voxel of the target: "0, 100, 100 vox" or "0, 800, 800'
        ' nm"'
    )
    shape: LengthsField = Field(description='size, z,y,x: "250 vox" or "2000 nm"')


def region_box(region: RegionConfig | None, voxel_size_nm: Nm3, whole: Box, field: str) -> Box:
    """The voxels of config key `field` on the target's grid; `whole` if none is given.

    Raises ConfigError if the region is empty, leaves `whole`, or is no whole number of voxels.
    """
    if region is None:
        return whole
    box = Box(
        region.begin.to_vox(voxel_size_nm, f"{field}.begin"), region.shape.to_vox(voxel_size_nm, f"{field}.shape")
    )
    if box.is_empty or not whole.contains(box):
        raise ConfigError(
            "the region is empty or leaves the data",
            where=field,
            wanted=f"inside {whole}",
            found=f"{box}, of which {box.intersect(whole)} has data",
        )
    return box
