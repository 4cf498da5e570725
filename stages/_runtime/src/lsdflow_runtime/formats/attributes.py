"""Axes, units and geometry in the attributes of zarr, N5, OME and TIFF volumes.

A stored array has axes named by one letter each ("tczyx", "xyz", "xyzc"); a box is read as z,y,x:

    stored "xyzc"  --slices-->  piece "xyzc"  --transpose-->  "czyx"  --drop c if there is one only-->  "zyx"

key                                  order      unit
voxel_size, resolution               storage    `units`/`unit` beside it, else nm
offset                               storage    the same
transform {scale, translate, axes}   `axes`     `units` in it, else nm
pixelResolution [+ unit]             x,y,z      its unit, else um (N5 viewer)
downsamplingFactors                  x,y,z      times pixelResolution
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3, xyz_to_nm3

SPACE = "zyx"
NM_PER_UNIT = {
    "angstrom": 0.1, "ångström": 0.1, "å": 0.1,
    "nm": 1.0, "nanometer": 1.0, "nanometre": 1.0, "nanometers": 1.0,
    "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "microns": 1e3, "micrometer": 1e3, "micrometre": 1e3,
    "mm": 1e6, "millimeter": 1e6, "millimetre": 1e6,
    "cm": 1e7, "centimeter": 1e7, "centimetre": 1e7,
    "m": 1e9, "meter": 1e9, "metre": 1e9,
    "inch": 2.54e7, "in": 2.54e7, "\"": 2.54e7,
}  # fmt: skip

AXIS_KEYS = ("axis_names", "_ARRAY_DIMENSIONS", "dimension_names", "axistags", "axes", "axisOrder")
AXIS_WORDS = {
    "z": "z depth plane planes section sections slice slices",
    "y": "y height row rows",
    "x": "x width column columns",
    "c": "c channel channels",
    "t": "t time timepoint timepoints frame frames",
}
LETTER_OF = {word: letter for letter, words in AXIS_WORDS.items() for word in words.split()}
# Names that xarray and netCDF give to axes without one, in their order.
PLACEHOLDER = re.compile(r"(?:|(?:phony_)?dim_(\d+))")


def nm_per(unit: str, where: str) -> float:
    """Nanometres in one `unit`.

    Raises:
        BadData: the unit is not a known length ("pixel", "second", a typing error).
    """
    spelled = unit.strip().replace("\\u00B5", "µ")
    factor = NM_PER_UNIT.get(spelled, NM_PER_UNIT.get(spelled.lower()))
    if factor is None:
        raise BadData(
            f"unknown unit of length {unit!r}",
            where=where,
            wanted="one of " + ", ".join(sorted(set(NM_PER_UNIT), key=lambda name: (NM_PER_UNIT[name], name))),
            found=repr(unit),
            fix='correct the metadata, or give the size yourself: voxel_size = "40, 8, 8 nm"',
        )
    return factor


def is_length(unit: str) -> bool:
    """True if `unit` is a length that can be converted to nanometres."""
    spelled = unit.strip().replace("\\u00B5", "µ")
    return spelled in NM_PER_UNIT or spelled.lower() in NM_PER_UNIT


def named_axes(attributes: Mapping[str, Any]) -> dict[str, list[object]]:
    """The names of the stored axes by the key that gives them: a list, "zyxc", a table of ilastik or webKnossos."""
    found: dict[str, list[object]] = {}
    for key in AXIS_KEYS:
        value = attributes.get(key)
        if isinstance(value, str):
            value = json.loads(value) if value.lstrip()[:1] in ("{", "[") else list(value.replace(",", ""))
        if isinstance(value, Mapping):
            value = value.get("axes") or [name for _, name in sorted((int(i), name) for name, i in value.items())]
        if isinstance(value, Sequence) and value:
            found[key] = [item.get("key", item.get("name")) if isinstance(item, Mapping) else item for item in value]
    return found


def parse_axes(named: Iterable[Sequence[object]], shape: Sequence[int], default: str, where: str) -> str:
    """One letter per stored axis, from lists of names like ["c^", "z", "y", "x"]; `default` if none is a name.

    Raises:
        BadData: names that are unknown, differ, or are not z, y, x and at most one t and c; no names, although the
            shape is not that of the default order.
    """
    found = {letters: names for names in named if (letters := _letters(names)) is not None}
    if len(found) > 1:
        first, other = list(found.values())[:2]
        raise BadData("two pieces of metadata name different axes", where=where, found=f"{first}; {other}")
    if not found:
        ndim = len(shape)
        letters = default[-ndim:] if default.endswith(SPACE) else default[:ndim]
        if "c" in letters and shape[letters.index("x")] < shape[letters.index("c")]:
            raise BadData(
                "the axes of the volume have no names, and which one has the channels is not clear",
                where=where,
                wanted=f"axes {', '.join(letters)}: fewer channels than voxels along x",
                found=f"shape {tuple(shape)}",
                fix='name the axes in the metadata ("axis_names": ["z", "y", "x", "c"]), or store the channels first',
            )
        found = {letters: letters}
    letters, names = found.popitem()
    check_axes(letters, len(shape), where, names)
    return letters


def _letters(names: Sequence[object]) -> str | None:
    """A letter for each name, "?" for an unknown one; None for placeholders such as dim_0, dim_1."""
    words = ["" if name is None else str(name).strip().lower().rstrip("^") for name in names]
    numbers = [PLACEHOLDER.fullmatch(word) for word in words]
    if all(numbers) and [int(n[1] or 0) for n in numbers if n] == sorted(int(n[1] or 0) for n in numbers if n):
        return None
    return "".join(LETTER_OF.get(word, "?") for word in words)


def check_axes(letters: str, ndim: int, where: str, names: Sequence[object] = "") -> None:
    """Raise BadData for axes other than z, y, x and at most one t and one c."""
    known = set(SPACE) <= set(letters) <= set(LETTER_OF.values())
    if len(letters) != ndim or len(set(letters)) != len(letters) or not known:
        raise BadData(
            "the axes of the volume are not z, y, x",
            where=where,
            wanted="3 axes (z,y,x), or 4-5 with one channel axis c and one time axis t",
            found=f"{ndim} axes named {names or letters!r}",
            fix="name another dataset, or correct the axis names in its metadata",
        )


def spatial(values: Sequence[object], axes: str, where: str, what: str) -> list[Any]:
    """The z,y,x entries of a list that follows the stored axes (all of them, or the spatial ones only)."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        values = [values]
    order = axes if len(values) == len(axes) else "".join(letter for letter in axes if letter in SPACE)
    if len(values) != len(order):
        wanted = "3 (z, y, x)" + f", or {len(axes)}" * (len(axes) > len(SPACE))
        raise BadData(f"{what} has {len(values)} entries", where=where, wanted=wanted, found=repr(values))
    return [values[order.index(letter)] for letter in SPACE]


def shape_zyx(stored_shape: Sequence[int], axes: str) -> Vox3:
    """Number of voxels along z, y, x."""
    z, y, x = (int(stored_shape[axes.index(letter)]) for letter in SPACE)
    return (z, y, x)


def channels_of(stored_shape: Sequence[int], axes: str) -> int | None:
    """Number of channels; None for a volume without channels or with a single one."""
    count = int(stored_shape[axes.index("c")]) if "c" in axes else 1
    return count if count > 1 else None


def refuse_time_series(stored_shape: Sequence[int], axes: str, where: str) -> None:
    """Raise BadData for a time axis with more than one point."""
    if "t" in axes and stored_shape[axes.index("t")] != 1:
        raise BadData(
            "the volume is a time series",
            where=where,
            wanted="one time point",
            found=f"{stored_shape[axes.index('t')]} time points",
            fix="write the time point you want to a file of its own",
        )


def stored_slices(box: Box, stored_shape: Sequence[int], axes: str) -> tuple[slice, ...]:
    """Slices along the stored axes that cover `box`, all channels, and the only time point."""
    spans = dict(zip(SPACE, zip(box.begin_vox, box.end_vox, strict=True), strict=True))
    spans |= {letter: (0, stored_shape[axes.index(letter)]) for letter in axes if letter not in SPACE}
    return tuple(slice(*spans[letter]) for letter in axes)


def to_zyx(piece: NDArray[np.generic], axes: str) -> NDArray[np.generic]:
    """A stored piece as (c, z, y, x), or (z, y, x) without channels or with a single one; C-contiguous."""
    wanted = "".join(letter for letter in "tc" if letter in axes) + SPACE
    turned = piece.transpose([axes.index(letter) for letter in wanted])
    if "t" in axes:
        turned = turned[0]
    if "c" in axes and turned.shape[0] == 1:
        turned = turned[0]
    return np.ascontiguousarray(turned)


def claims_of(attributes: Mapping[str, Any], axes: str, where: str) -> list[GeometryClaim]:
    """All claims in `attributes`; lists are in the order of the stored `axes` unless the convention differs.

    Raises:
        BadData: a list of the wrong length, a value that is not a number, an unknown unit.
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
    """The `transform` block of Janelia's COSEM volumes, which names its own axes and units."""
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
