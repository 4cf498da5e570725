"""Selects the voxels of each input: regions in nm or voxels, and labels and mask aligned to the raw grid."""

from __future__ import annotations

from typing import NamedTuple

from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box, Geometry, Lengths, Nm3, Vox3, whole_voxels


class Placed(NamedTuple):
    """An input on the raw grid: its box in raw voxels (index 0 = first voxel of the whole raw array)."""

    box: Box
    where: str


def region_box(offset: Lengths, shape: Lengths, geometry: Geometry, field: str) -> Box:
    """Box of a region in raw voxels: an offset in nm is a world position, one in voxels an index.

    Raises:
        ConfigError: not whole voxels, an empty region, or one that is not inside the volume.
    """
    size = geometry.voxel_size_nm
    if offset.unit == "vox":
        begin = offset.to_vox(size, f"{field}.offset")
    else:
        world = offset.to_nm(size)
        begin = whole_voxels(_minus(world, geometry.offset_nm), size, f"{field}.offset")
    box = Box(begin, shape.to_vox(size, f"{field}.shape"))
    return within(box, geometry, field)


def region_box_nm(offset_nm: Nm3, shape_nm: Nm3, geometry: Geometry, field: str) -> Box:
    """Box of a region in world nm (JSON ROI container)."""
    size = geometry.voxel_size_nm
    begin = whole_voxels(_minus(offset_nm, geometry.offset_nm), size, f"offset of {field}")
    return within(Box(begin, whole_voxels(shape_nm, size, f"size of {field}")), geometry, field)


def within(box: Box, geometry: Geometry, field: str) -> Box:
    """`box`; raises ConfigError if it is empty or not inside the volume."""
    if min(box.shape_vox) <= 0:
        raise ConfigError(f"{field} is empty", wanted="at least one voxel along each axis", found=str(box))
    if not geometry.box.contains(box):
        inside = geometry.box.intersect(box)
        raise ConfigError(
            f"{field} leaves the volume",
            wanted=f"within {geometry.box} voxels (world offset {geometry.offset_nm} nm)",
            found=f"{box} voxels; intersection {'empty' if inside.is_empty else inside}",
        )
    return box


def lay_on(labels: Geometry, raw: Geometry, where: str, raw_where: str) -> Placed:
    """The position of labels or mask on the raw grid.

    Raises:
        BadData: the voxel sizes differ, or the offsets do not differ by a whole number of voxels.
    """
    try:
        shift = labels.voxel_offset_from(raw, where)
    except ConfigError as error:
        raise BadData(
            f"{where} does not lie on the voxel grid of raw: {error.what}",
            where=where,
            wanted=f"voxel size {raw.voxel_size_nm} nm, offset {raw.offset_nm} nm plus whole voxels ({raw_where})",
            found=f"voxel size {labels.voxel_size_nm} nm, offset {labels.offset_nm} nm",
            fix=error.fix or "correct the metadata of one of the two",
        ) from error
    return Placed(Box(shift, labels.shape_vox), where)


def require_cover(placed: Placed, region: Box, whole: Box, raw_where: str, pad_labels: bool) -> Box:
    """The part of `region` (raw voxels) that the labels cover.

    Raises:
        BadData: labels cover only a part (and `pad_labels` is off), or nothing; the message names both shapes.
    """
    covered = placed.box.intersect(region)
    exact = placed.box == region if region == whole else covered == region
    if exact or (pad_labels and not covered.is_empty):
        return covered
    fix = "correct the offset in the metadata of one of the two (a TIFF has none: convert it to zarr)"
    if not covered.is_empty and placed.box.shape_vox != whole.shape_vox:
        fix = "take the common region with roi, or set pad_labels = true to ignore what labels do not cover"
    raise BadData(
        f"{placed.where} and raw do not cover the same region",
        where=placed.where,
        wanted=f"shape {region.shape_vox} at voxel {region.begin_vox} (raw, {raw_where})",
        found=f"shape {placed.box.shape_vox} at voxel {placed.box.begin_vox} of raw",
        fix=fix,
    )


def _minus(first: Nm3, second: Nm3) -> Nm3:
    z, y, x = (a - b for a, b in zip(first, second, strict=True))
    return (z, y, x)


def moved(box: Box, origin: Vox3) -> Box:
    """`box` relative to `origin`, which becomes voxel (0,0,0)."""
    return box.translate((-origin[0], -origin[1], -origin[2]))
