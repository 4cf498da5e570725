"""Geometry claims from the attributes of zarr and N5 arrays and groups.

key                                  order      unit
voxel_size, resolution               storage    `units`/`unit` beside it, else nm
offset                               storage    the same
transform {scale, translate, axes}   `axes`     `units` in it, else nm
pixelResolution [+ unit]             x,y,z      its unit, else um (N5 viewer)
downsamplingFactors                  x,y,z      times pixelResolution
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Nm3
from lsdflow_runtime.formats.axes import SPACE, spatial
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3, xyz_to_nm3
from lsdflow_runtime.formats.units import nm_per


def claims_of(attributes: Mapping[str, Any], axes: str, where: str) -> list[GeometryClaim]:
    """All claims in `attributes`; lists follow the stored `axes` unless the convention says otherwise.

    Raises:
        BadData: a list of the wrong length, a value that is no number, an unknown unit.
    """
    factors = _unit_factors(attributes, axes, where)
    claims = []
    for key in ("voxel_size", "resolution"):
        if key in attributes:
            size = _scaled(spatial(attributes[key], axes, where, key), factors, where, key)
            claims.append(GeometryClaim(f"attribute {key!r} of {where}", voxel_size_nm=size))
    if "offset" in attributes:
        offset = _scaled(spatial(attributes["offset"], axes, where, "offset"), factors, where, "offset")
        claims.append(GeometryClaim(f"attribute 'offset' of {where}", offset_nm=offset))
    return claims + _transform_claim(attributes, where) + _pixel_resolution_claim(attributes, where)


def _unit_factors(attributes: Mapping[str, Any], axes: str, where: str) -> list[float]:
    """nm per unit for z, y, x."""
    named = attributes.get("units", attributes.get("unit"))
    if named is None:
        return [1.0, 1.0, 1.0]
    if isinstance(named, str):
        return [nm_per(named, where)] * 3
    return [nm_per(str(unit), where) for unit in spatial(named, axes, where, "units")]


def _scaled(values: Sequence[float], factors: Sequence[float], where: str, key: str) -> Nm3:
    plain = to_nm3(values, where, f"attribute {key!r}")
    return to_nm3([value * factor for value, factor in zip(plain, factors, strict=True)], where, key)


def _transform_claim(attributes: Mapping[str, Any], where: str) -> list[GeometryClaim]:
    """The `transform` block of Janelia's COSEM volumes: it names its own axes and units."""
    block = attributes.get("transform")
    if not isinstance(block, Mapping) or "scale" not in block:
        return []
    axes = block.get("axes", SPACE)
    order = "".join(str(axis)[:1].lower() for axis in (axes if isinstance(axes, Sequence) else ()))
    if sorted(order) != sorted(SPACE):
        raise BadData(
            "attribute 'transform' does not name the axes z, y, x", where=where, found=repr(block.get("axes"))
        )
    named = spatial(block.get("units", ["nm"] * 3), order, where, "transform.units")
    units = [nm_per(str(unit), where) for unit in named]
    size = _scaled(spatial(block["scale"], order, where, "transform.scale"), units, where, "transform.scale")
    shift = spatial(block.get("translate", [0, 0, 0]), order, where, "transform.translate")
    offset = _scaled(shift, units, where, "transform.translate")
    return [GeometryClaim(f"attribute 'transform' of {where}", size, offset)]


def _pixel_resolution_claim(attributes: Mapping[str, Any], where: str) -> list[GeometryClaim]:
    """N5 viewer: pixelResolution (list, or {unit, dimensions}) of full resolution, times downsamplingFactors."""
    stored = attributes.get("pixelResolution")
    if stored is None:
        return []
    unit = "um"
    if isinstance(stored, Mapping):
        unit, stored = str(stored.get("unit", unit)), stored.get("dimensions", ())
    sizes = xyz_to_nm3(stored, where, "attribute 'pixelResolution'")
    steps = xyz_to_nm3(attributes.get("downsamplingFactors", (1, 1, 1)), where, "'downsamplingFactors'")
    values = [size * step * nm_per(unit, where) for size, step in zip(sizes, steps, strict=True)]
    return [GeometryClaim(f"attribute 'pixelResolution' of {where}", to_nm3(values, where, "pixelResolution"))]
