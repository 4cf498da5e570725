"""Boxes in voxels, lengths with units, and the position of a volume in the world. Axes are always z, y, x.

offset_nm                      a Box is half open: begin_vox <= voxel < end_vox
v
+----+----+----+---- ...       world position of the corner of voxel i (nm) = offset_nm + i * voxel_size_nm
|  0 |  1 |  2 |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.model import StrictModel

Vox3 = tuple[int, int, int]
Nm3 = tuple[float, float, float]

_TO_NM = {"nm": 1.0, "um": 1e3, "µm": 1e3, "mm": 1e6}
_VOXEL_UNITS = {"vox", "voxel", "voxels", "vx"}
_LENGTH = re.compile(r"^\s*([-+0-9.eE,\s]+?)\s*([a-zA-Zµ]+)\s*$")
# For editors: one number or three, then a unit. Lengths.parse decides what is valid.
_NUMBER = r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?"
_LENGTH_PATTERN = (
    rf"^\s*{_NUMBER}(\s*,\s*{_NUMBER}\s*,\s*{_NUMBER})?\s*({'|'.join([*_TO_NM, *sorted(_VOXEL_UNITS)])})\s*$"
)
_WHOLE_VOXEL_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Box:
    """A cuboid of voxels, half open. `begin_vox` may be negative (context outside a volume); shapes are >= 0."""

    begin_vox: Vox3
    shape_vox: Vox3

    @classmethod
    def from_bounds(cls, begin_vox: Vox3, end_vox: Vox3) -> Box:
        """The box from begin to end; empty (shape 0) along an axis whose end is before its begin."""
        shape = tuple(max(0, e - b) for b, e in zip(begin_vox, end_vox, strict=True))
        return cls(begin_vox, _three(shape))

    @classmethod
    def hull(cls, boxes: Iterable[Box]) -> Box:
        """The smallest box that holds all `boxes` (at least one)."""
        begins, ends = zip(*((box.begin_vox, box.end_vox) for box in boxes), strict=True)
        begin, end = map(min, zip(*begins, strict=True)), map(max, zip(*ends, strict=True))
        return cls.from_bounds(_three(begin), _three(end))

    @property
    def end_vox(self) -> Vox3:
        """First voxel after the box, z, y, x."""
        return _three(b + s for b, s in zip(self.begin_vox, self.shape_vox, strict=True))

    @property
    def size(self) -> int:
        """Number of voxels."""
        return math.prod(self.shape_vox)

    @property
    def is_empty(self) -> bool:
        """True if the box holds no voxel."""
        return self.size == 0

    def grow(self, lower_vox: Vox3, upper_vox: Vox3 | None = None) -> Box:
        """The box with `lower_vox` more voxels below and `upper_vox` (default: the same) above; negative shrinks."""
        upper = lower_vox if upper_vox is None else upper_vox
        begin = _three(b - n for b, n in zip(self.begin_vox, lower_vox, strict=True))
        end = _three(e + n for e, n in zip(self.end_vox, upper, strict=True))
        return Box.from_bounds(begin, end)

    def intersect(self, other: Box) -> Box:
        """The voxels in both; empty if there are none."""
        begin = _three(max(a, b) for a, b in zip(self.begin_vox, other.begin_vox, strict=True))
        end = _three(min(a, b) for a, b in zip(self.end_vox, other.end_vox, strict=True))
        return Box.from_bounds(begin, end)

    def contains(self, other: Box) -> bool:
        """True if every voxel of `other` is in this box."""
        return self.intersect(other) == other or other.is_empty

    def without(self, other: Box) -> Iterator[Box]:
        """The voxels that are not in `other`, as at most six boxes that do not overlap."""
        inner, rest = self.intersect(other), self
        if inner.is_empty:
            yield self
            return
        for axis in range(3):
            begin, end = list(rest.begin_vox), list(rest.end_vox)
            lower, upper = inner.begin_vox[axis], inner.end_vox[axis]
            for part_begin, part_end in ((begin[axis], lower), (upper, end[axis])):
                part = Box.from_bounds(
                    _three([*begin[:axis], part_begin, *begin[axis + 1 :]]),
                    _three([*end[:axis], part_end, *end[axis + 1 :]]),
                )
                if not part.is_empty:
                    yield part
            begin[axis], end[axis] = lower, upper
            rest = Box.from_bounds(_three(begin), _three(end))

    def translate(self, by_vox: Vox3) -> Box:
        """The box moved by `by_vox`."""
        return Box(_three(b + t for b, t in zip(self.begin_vox, by_vox, strict=True)), self.shape_vox)

    def slices(self, relative_to: Vox3 = (0, 0, 0)) -> tuple[slice, slice, slice]:
        """Slices of this box in an array whose first voxel is `relative_to`."""
        bounds = zip(self.begin_vox, self.shape_vox, relative_to, strict=True)
        z, y, x = (slice(b - r, b - r + s) for b, s, r in bounds)
        return z, y, x

    def __str__(self) -> str:
        return " ".join(f"{a}[{b}:{e}]" for a, b, e in zip("zyx", self.begin_vox, self.end_vox, strict=True))


@dataclass(frozen=True)
class Geometry:
    """The grid of a volume: voxel size and offset of its first voxel's corner in nm, shape in voxels."""

    voxel_size_nm: Nm3
    offset_nm: Nm3
    shape_vox: Vox3

    @property
    def box(self) -> Box:
        """The volume's own voxels, starting at 0."""
        return Box((0, 0, 0), self.shape_vox)

    def position_nm(self, voxel: Vox3) -> Nm3:
        """World position of the corner of `voxel`, nm."""
        z, y, x = (o + v * s for o, v, s in zip(self.offset_nm, voxel, self.voxel_size_nm, strict=True))
        return z, y, x

    def voxel_offset_from(self, origin: Geometry, where: object) -> Vox3:
        """Offset of this volume's first voxel in voxels of `origin`'s grid.

        Raises ConfigError if voxel sizes differ or the offset is not a whole number of voxels.
        """
        _require_same_voxel_size(self.voxel_size_nm, origin.voxel_size_nm, where)
        shift_nm = _three_nm(a - b for a, b in zip(self.offset_nm, origin.offset_nm, strict=True))
        return whole_voxels(shift_nm, self.voxel_size_nm, f"offset of {where}")


@dataclass(frozen=True)
class Lengths:
    """Three lengths with one unit, as written in the experiment file: "64 vox", "2048 nm", "40, 8, 8 nm"."""

    values: tuple[float, float, float]
    unit: str

    @classmethod
    def parse(cls, text: object) -> Lengths:
        """Parse lengths; one number applies to all three axes. Raises ValueError with the allowed forms."""
        if isinstance(text, Lengths):
            return text
        match = _LENGTH.match(text) if isinstance(text, str) else None
        unit = "" if match is None else match.group(2)
        if match is None or unit not in _TO_NM.keys() | _VOXEL_UNITS:
            msg = f'a length needs its unit: "64 vox", "2048 nm" or "40, 8, 8 nm" (z, y, x); found {text!r}'
            raise ValueError(msg)
        try:
            numbers = [float(part) for part in match.group(1).split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
            msg = f"a length is one number or three (z, y, x); found {text!r}"
            raise ValueError(msg)
        z, y, x = numbers * (3 if len(numbers) == 1 else 1)
        return cls((z, y, x), "vox" if unit in _VOXEL_UNITS else unit)

    def to_nm(self, voxel_size_nm: Nm3) -> Nm3:
        """The lengths in nm."""
        factors = voxel_size_nm if self.unit == "vox" else (_TO_NM[self.unit],) * 3
        return _three_nm(v * f for v, f in zip(self.values, factors, strict=True))

    def to_vox(self, voxel_size_nm: Nm3, field: str) -> Vox3:
        """The lengths in whole voxels. Raises ConfigError naming `field` if they are not whole numbers of voxels."""
        if self.unit == "vox":
            return whole_voxels(self.values, (1.0, 1.0, 1.0), field)
        return whole_voxels(self.to_nm(voxel_size_nm), voxel_size_nm, field)

    def __str__(self) -> str:
        same = len(set(self.values)) == 1
        numbers = f"{self.values[0]:g}" if same else ", ".join(f"{v:g}" for v in self.values)
        return f"{numbers} {self.unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        to_text = core_schema.plain_serializer_function_ser_schema(str)
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=to_text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": _LENGTH_PATTERN, "examples": ["64 vox", "2048 nm", "40, 8, 8 nm"]}


def _positive(lengths: Lengths) -> Lengths:
    if min(lengths.values) <= 0:
        msg = f"a length above 0 is needed along each axis; found {str(lengths)!r}"
        raise ValueError(msg)
    return lengths


LengthsField = Annotated[Lengths, "three lengths with a unit"]
PositiveLengths = Annotated[Lengths, AfterValidator(_positive)]


def whole_voxels(length_nm: Nm3, voxel_size_nm: Nm3, field: str) -> Vox3:
    """Length in voxels; raises ConfigError naming `field` and the nearest fit if it is not whole (within 0.001)."""
    exact = [length / size for length, size in zip(length_nm, voxel_size_nm, strict=True)]
    rounded = [round(v) for v in exact]
    if any(abs(v - r) > _WHOLE_VOXEL_TOLERANCE for v, r in zip(exact, rounded, strict=True)):
        nearest = ", ".join(f"{r * size:g}" for r, size in zip(rounded, voxel_size_nm, strict=True))
        raise ConfigError(
            f"{field} is not a whole number of voxels",
            wanted=f"multiples of the voxel size {_text(voxel_size_nm)} nm",
            found=f"{_text(length_nm)} nm = {_text(tuple(exact))} voxels",
            fix=f"nearest that fits: {nearest} nm",
        )
    return _three(rounded)


def _require_same_voxel_size(found: Nm3, wanted: Nm3, where: object) -> None:
    if any(not math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, wanted, strict=True)):
        raise ConfigError("voxel sizes differ", where=where, wanted=f"{_text(wanted)} nm", found=f"{_text(found)} nm")


def _text(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def _three(values: Any) -> Vox3:
    z, y, x = values
    return int(z), int(y), int(x)


def _three_nm(values: Any) -> Nm3:
    z, y, x = values
    return float(z), float(y), float(x)


class RegionConfig(StrictModel):
    """A part of the target: where it begins, from the target's first voxel, and how large it is."""

    begin: LengthsField = Field(
        description='first corner, z,y,x, relative to the first voxel of the target: "0, 100, 100 vox" or "0, 800, 800'
        ' nm"'
    )
    shape: LengthsField = Field(description='size, z,y,x: "250 vox" or "2000 nm"')


def region_box(region: RegionConfig | None, voxel_size_nm: Nm3, whole: Box, field: str) -> Box:
    """The voxels of config key `field` on the target's grid; `whole` if none is given.

    Raises ConfigError if the region is empty, is not inside `whole`, or is not a whole number of voxels.
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
