"""The geometry in a volume's metadata: every convention found there is one claim, and all claims must agree.

A voxel size is never guessed. It is an error if there is no claim, or if two claims differ (the error names both). Only
a voxel size set by the user overrides them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lsdflow_contract.errors import BadData, NoVoxelSize
from lsdflow_contract.geometry import Geometry, Nm3, Vox3

# Rationals of TIFF and sizes converted from micrometres differ from the intended number in the 6th digit.
AGREEMENT = 1e-4
SMALLEST_NM, LARGEST_NM = 1e-3, 1e6


@dataclass(frozen=True)
class GeometryClaim:
    """Voxel size and offset from one entry of the metadata, z,y,x in nm; None for a missing value."""

    source: str
    voxel_size_nm: Nm3 | None = None
    offset_nm: Nm3 | None = None


def to_nm3(values: Any, where: str, what: str) -> Nm3:
    """Three finite numbers; raises BadData otherwise."""
    try:
        z, y, x = (float(value) for value in values)
    except (TypeError, ValueError):
        z = y = x = math.nan
    if not all(math.isfinite(value) for value in (z, y, x)):
        raise BadData(
            f"{what} is not three numbers", where=where, wanted="three finite numbers, z,y,x", found=repr(values)
        )
    return (z, y, x)


def xyz_to_nm3(values: Any, where: str, what: str) -> Nm3:
    """Three finite numbers in order x,y,z, converted to z,y,x; raises BadData otherwise."""
    return to_nm3(values[::-1] if isinstance(values, list | tuple) else values, where, what)


def place(
    claims: Sequence[GeometryClaim],
    shape_vox: Vox3,
    where: str,
    *,
    voxel_size_nm: Nm3 | None = None,
    expansion_factor: float = 1.0,
    setting: str = "voxel_size",
) -> Geometry:
    """The geometry on which all claims agree.

    Args:
        claims: the claims of the metadata.
        shape_vox: shape of the volume.
        where: the volume, for messages.
        voxel_size_nm: the size set by the user; it overrides the metadata, whose offset keeps its voxel position.
        expansion_factor: of expansion microscopy; sizes and offsets are divided by it (effective, pre-expansion nm).
        setting: the config key that sets the voxel size, for messages.

    Raises:
        BadData: no voxel size, conflicting sizes or offsets, a size that is not positive.
    """
    sizes = [claim for claim in claims if claim.voxel_size_nm is not None]
    offsets = [claim for claim in claims if claim.offset_nm is not None]
    if voxel_size_nm is None:
        _refuse_missing(sizes, where, setting)
        _refuse_conflict(sizes, "voxel_size_nm", where, setting)
    size = voxel_size_nm or sizes[0].voxel_size_nm
    offset = _offset_of(offsets, where, setting)
    if size is None or min(size) <= 0:
        raise BadData("voxel size must be positive", where=where, found=str(size), fix=_fix(setting))
    if min(size) < SMALLEST_NM or max(size) > LARGEST_NM:
        wanted = f"{SMALLEST_NM} to {LARGEST_NM:.0e} nm"
        raise BadData(
            "no microscope has this voxel size", where=where, wanted=wanted, found=str(size), fix=_fix(setting)
        )
    scale = _rescale(voxel_size_nm, sizes, where)
    factor = float(expansion_factor)
    return Geometry(
        _tidy(tuple(value / factor for value in size)),
        _tidy(tuple(value * ratio / factor for value, ratio in zip(offset, scale, strict=True))),
        shape_vox,
    )


def _offset_of(offsets: list[GeometryClaim], where: str, setting: str) -> Nm3:
    if not offsets:
        return (0.0, 0.0, 0.0)
    _refuse_conflict(offsets, "offset_nm", where, setting)
    return offsets[0].offset_nm or (0.0, 0.0, 0.0)


def _rescale(typed: Nm3 | None, sizes: list[GeometryClaim], where: str) -> Nm3:
    """The factor for an offset in the metadata's nm if the user set another voxel size."""
    stated = sizes[0].voxel_size_nm if sizes else None
    if typed is None or stated is None or not all(stated) or not _all_agree(sizes):
        return (1.0, 1.0, 1.0)
    return to_nm3([new / old for new, old in zip(typed, stated, strict=True)], where, "voxel size")


def _tidy(values: tuple[float, ...]) -> Nm3:
    """The values rounded to nine significant digits, so that 0.1 * 3 becomes 0.3."""
    z, y, x = (float(f"{value:.9g}") for value in values)
    return (z, y, x)


def agree(first: Nm3, second: Nm3, scale_nm: Nm3 | None = None) -> bool:
    """True if two triples are equal within AGREEMENT, relative to the larger one, or for offsets to `scale_nm`."""
    allowed = scale_nm or tuple(max(abs(a), abs(b)) for a, b in zip(first, second, strict=True))
    return all(abs(a - b) <= AGREEMENT * size for a, b, size in zip(first, second, allowed, strict=True))


def _all_agree(claims: list[GeometryClaim]) -> bool:
    sizes = [claim.voxel_size_nm for claim in claims if claim.voxel_size_nm is not None]
    return all(agree(sizes[0], size) for size in sizes[1:])


def _refuse_missing(sizes: list[GeometryClaim], where: str, setting: str) -> None:
    if not sizes:
        raise NoVoxelSize(
            "the volume does not say its voxel size",
            where=where,
            wanted="voxel_size, resolution, an OME scale or the like",
            found="none of them",
            fix=_fix(setting),
        )


def _refuse_conflict(claims: list[GeometryClaim], key: str, where: str, setting: str) -> None:
    first = getattr(claims[0], key)
    for claim in claims[1:]:
        other = getattr(claim, key)
        if agree(first, other):
            continue
        name = "voxel size" if key == "voxel_size_nm" else "offset"
        swapped = " (the same numbers reversed: one of the two is x,y,z)" if agree(first, other[::-1]) else ""
        raise BadData(
            f"two pieces of metadata give different {name}s{swapped}",
            where=where,
            wanted=f"one {name}, in nm, z,y,x",
            found=f"{claims[0].source}: {_text(first)} nm; {claim.source}: {_text(other)} nm",
            fix=_fix(setting) if name == "voxel size" else "correct one of the two offsets in the metadata",
        )


def _text(values: Nm3) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _fix(setting: str) -> str:
    return f'set {setting} = "40, 8, 8 nm" (your own numbers, z,y,x) in experiment.toml'
