"""Array attributes: both styles of the field are written; reading is strict, and never assumes a voxel size of 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, AFFS, ArraySpec, is_neighborhood
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry, Nm3, Vox3

PROVENANCE = "lsdflow"
NEIGHBORHOOD = "neighborhood"
_UNIT_NM = {"nm": 1.0, "nanometer": 1.0, "um": 1e3, "µm": 1e3, "micrometer": 1e3, "micron": 1e3, "mm": 1e6}


def array_attributes(spec: ArraySpec, geometry: Geometry, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array in the style of lsd (offset, resolution) and of funlib (voxel_size, axis_names, ...)."""
    units = ["nm", "nm", "nm"]
    channel_type = ["channel"] if spec.channels else []
    return {
        "resolution": _plain(geometry.voxel_size_nm),
        "offset": _plain(geometry.offset_nm),
        "voxel_size": _plain(geometry.voxel_size_nm),
        "axis_names": list(spec.axis_names),
        "units": units,
        "types": [*channel_type, "space", "space", "space"],
        **({NEIGHBORHOOD: [list(offset) for offset in spec.neighborhood]} if spec.neighborhood else {}),
        PROVENANCE: dict(provenance),
    }


def read_geometry(attributes: Mapping[str, Any], shape_vox: Vox3, where: object) -> Geometry:
    """Voxel size and offset from attributes of either style, in nm.

    Raises BadData if the voxel size is missing, not positive, or two attributes disagree.
    """
    scale = unit_scale_nm(attributes, where)
    found = {k: _three(attributes[k], k, scale, where) for k in ("resolution", "voxel_size") if k in attributes}
    if not found:
        raise BadData(
            "the array has no voxel size",
            where=where,
            wanted="an attribute resolution or voxel_size (z, y, x; nm)",
            found=f"attributes {sorted(attributes)}",
            fix='give it in the experiment file: voxel_size = "40, 8, 8 nm"',
        )
    voxel_size = _one_of(found, where)
    if min(voxel_size) <= 0:
        raise BadData("the voxel size is not positive", where=where, found=voxel_size)
    offset = _three(attributes.get("offset", (0, 0, 0)), "offset", scale, where)
    return Geometry(voxel_size, offset, shape_vox)


def read_neighborhood(attributes: Mapping[str, Any], channels: int, dtype: str, where: object) -> tuple[Vox3, ...]:
    """The offset z, y, x of each channel of affinities; without the attribute, the three nearest voxels.

    Raises BadData if the array does not hold affinities: wrong dtype, number of offsets other than that of channels, or
    the nearest voxels are not first.
    """
    named = attributes.get(NEIGHBORHOOD)
    offsets = AFFINITY_NEIGHBORHOOD if named is None else _offsets(named, where)
    if channels != len(offsets) or dtype != AFFS.dtype:
        raise BadData(
            "these are not affinities",
            where=where,
            wanted=f"{AFFS.dtype}, {len(offsets)} channels",
            found=f"{dtype}, {channels} channels",
        )
    if not is_neighborhood(offsets):
        raise BadData(
            "the neighborhood of the affinities is not one",
            where=where,
            wanted=f"{[list(offset) for offset in AFFINITY_NEIGHBORHOOD]} first, then other voxels, each once",
            found=named,
        )
    return offsets


@contextmanager
def understanding_metadata(where: object) -> Iterator[None]:
    """Convert errors caused by metadata of an unexpected form to BadData."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise BadData(
            "the metadata of the volume cannot be understood",
            where=where,
            found=f"{type(error).__name__}: {error}"[:300],
            fix="correct the metadata, or write the volume again with a library of its format",
        ) from error


def unit_scale_nm(attributes: Mapping[str, Any], where: object) -> float:
    """Factor from the unit in the attributes (default nm) to nm; BadData for an unknown or mixed unit."""
    named = attributes.get("units", attributes.get("unit", "nm"))
    units = {named} if isinstance(named, str) else {u for u in named if u}
    units = units or {"nm"}
    if len(units) != 1 or not units <= _UNIT_NM.keys():
        raise BadData("unknown unit of the voxel size", where=where, wanted=sorted(_UNIT_NM), found=sorted(units))
    return _UNIT_NM[units.pop()]


def _one_of(found: dict[str, Nm3], where: object) -> Nm3:
    values = list(found.values())
    agree = all(math.isclose(a, b, rel_tol=1e-6) for v in values for a, b in zip(v, values[0], strict=True))
    if not agree:
        raise BadData(
            "two attributes give different voxel sizes",
            where=where,
            found="; ".join(f"{k} = {v}" for k, v in found.items()),
            fix="correct the attributes, or give voxel_size in the experiment file",
        )
    return values[0]


def _three(value: Any, key: str, scale: float, where: object) -> Nm3:
    try:
        numbers = [float(v) * scale for v in value]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) == 4:
        numbers = numbers[1:]
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise BadData(f"attribute {key} is not three numbers", where=where, wanted="z, y, x", found=value)
    return numbers[0], numbers[1], numbers[2]


def _offsets(named: Any, where: object) -> tuple[Vox3, ...]:
    try:
        offsets = [(z, y, x) for z, y, x in named]
    except (TypeError, ValueError):
        offsets = []
    if not offsets or not all(type(value) is int for offset in offsets for value in offset):
        raise BadData(
            f"attribute {NEIGHBORHOOD} is no list of offsets", where=where, wanted="z, y, x of each", found=named
        )
    return tuple(offsets)


def _plain(values: Nm3) -> list[float | int]:
    return [int(v) if float(v).is_integer() else float(v) for v in values]
