"""OME-NGFF image metadata: 0.4 (zarr 2) and 0.5 (zarr 3) are read, 0.5 is written.

They are axes, scale levels, physical scale and translation.

The position of a level is given by its own transformations followed by those of the whole pyramid. Each is one `scale`
and then at most one `translation`, both in the units of the axes.

A translation is that of voxel centres: a level that averages f voxels is shifted by (f - 1) / 2 voxels of level 0, and
a level that keeps every f-th voxel is not shifted. Both have the same corner as level 0, so that shift is removed; any
other translation is used as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Nm3
from lsdflow_runtime.formats.attributes import LETTER_OF, SPACE, nm_per, spatial
from lsdflow_runtime.formats.claims import GeometryClaim, agree, to_nm3

VERSION = "0.5"
_METHODS = {
    "image": ("mean", "mean of 2 voxels per axis of the level before, rounded to the nearest, halves up"),
    "labels": ("mode", "most frequent label of 2 voxels per axis of the level before; of equals the lowest"),
}


class Level(NamedTuple):
    """One scale level: array path below the group, axes as letters, voxel size and corner in nm (None: no unit)."""

    path: str
    axes: str
    voxel_size_nm: Nm3 | None
    offset_nm: Nm3 | None


def multiscales_of(attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The multiscales of a group, 0.5 (`ome`) before 0.4; empty if it is not an OME image."""
    ome = attributes.get("ome")
    block = ome.get("multiscales") if isinstance(ome, Mapping) else attributes.get("multiscales")
    return [item for item in block if isinstance(item, Mapping)] if isinstance(block, list) else []


def levels_of(attributes: Mapping[str, Any], where: str) -> list[Level]:
    """Scale levels of the first image of a group, finest first.

    Raises:
        BadData: axes that violate the standard, a scale that is missing or given twice.
    """
    image = multiscales_of(attributes)[0]
    axes, factors = _axes_of(image, where)
    whole = _scale_and_shift(image.get("coordinateTransformations", []), axes, where, needed=False)
    levels: list[Level] = []
    for entry in image.get("datasets", []):
        own = _scale_and_shift(entry.get("coordinateTransformations", []), axes, where, needed=True)
        if factors is None:
            levels.append(Level(str(entry.get("path")), axes, None, None))
            continue
        size = to_nm3([a * b * f for a, b, f in zip(own[0], whole[0], factors, strict=True)], where, "scale")
        parts = zip(own[1], whole[0], whole[1], factors, strict=True)
        shift = to_nm3([(a * b + c) * f for a, b, c, f in parts], where, "translation")
        levels.append(Level(str(entry.get("path")), axes, size, _corner(shift, size, levels)))
    if not levels:
        raise BadData("the OME image names no scale level", where=where, wanted="multiscales[0].datasets", found="none")
    return levels


def claim_of(level: Level, where: str) -> list[GeometryClaim]:
    """The claim of a level; none if its axes have no unit of length."""
    if level.voxel_size_nm is None:
        return []
    return [GeometryClaim(f"OME multiscales of {where}, level {level.path!r}", level.voxel_size_nm, level.offset_nm)]


def _axes_of(image: Mapping[str, Any], where: str) -> tuple[str, list[float] | None]:
    """Axis letters in stored order, and nm per unit for z, y, x (None if no spatial axis has a unit)."""
    axes = image.get("axes", [])
    names = [str(axis.get("name") if isinstance(axis, Mapping) else axis).lower() for axis in axes]
    kinds = [str(axis.get("type", "")) if isinstance(axis, Mapping) else "" for axis in axes]
    letters = "".join(_letter(name, kind) for name, kind in zip(names, kinds, strict=True))
    if not set(SPACE) <= set(letters) or len(set(letters)) != len(letters) or not set(letters) <= set("tczyx"):
        raise BadData("the OME axes are not z, y, x with at most t and c", where=where, found=repr(names))
    units = {name: axis.get("unit") for name, axis in zip(letters, axes, strict=True) if isinstance(axis, Mapping)}
    if not any(units.get(axis) for axis in SPACE):
        return letters, None
    missing = [axis for axis in SPACE if not units.get(axis)]
    if missing:
        raise BadData(
            "some OME axes have no unit", where=where, wanted="a unit of length for z, y, x", found=repr(units)
        )
    return letters, [nm_per(str(units[axis]), where) for axis in SPACE]


def _letter(name: str, kind: str) -> str:
    return {"time": "t", "channel": "c"}.get(kind, LETTER_OF.get(name, name))


def _scale_and_shift(steps: Sequence[Mapping[str, Any]], axes: str, where: str, *, needed: bool) -> tuple[Nm3, Nm3]:
    """(scale, translation) z,y,x of a list of transformations."""
    kinds = [str(step.get("type")) for step in steps]
    if kinds not in ([], ["scale"], ["scale", "translation"]) or (needed and not kinds):
        raise BadData(
            "the OME transformations of a scale level are not one scale and at most one translation after it",
            where=where,
            wanted="[scale] or [scale, translation]",
            found=repr(kinds),
        )
    scale, shift = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)
    for step, kind in zip(steps, kinds, strict=True):
        if kind not in step:
            raise BadData(f"the OME {kind} is not written out in the metadata", where=where, found=repr(step))
        values = to_nm3(spatial(step[kind], axes, where, kind), where, kind)
        scale, shift = (values, shift) if kind == "scale" else (scale, values)
    return scale, shift


def _corner(shift: Nm3, size: Nm3, finer: Sequence[Level]) -> Nm3:
    """The corner of a level: that of level 0 if they differ only by the centre shift of averaging."""
    if not finer or finer[0].voxel_size_nm is None or finer[0].offset_nm is None:
        return shift
    first, base = finer[0].offset_nm, finer[0].voxel_size_nm
    centred = to_nm3([o + (s - b) / 2 for o, s, b in zip(first, size, base, strict=True)], "level", "translation")
    return first if agree(shift, centred, base) else shift


def image_metadata(name: str, kind: str, levels: Sequence[tuple[Nm3, Nm3]], channels: int = 0) -> dict[str, Any]:
    """The `ome` block of an image or of one label image; `levels`: voxel size and translation of each, nm."""
    leading = [1.0] if channels else []
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    datasets = [
        {
            "path": str(number),
            "coordinateTransformations": [
                {"type": "scale", "scale": [*leading, *size]},
                {"type": "translation", "translation": [*(0.0 for _ in leading), *translation]},
            ],
        }
        for number, (size, translation) in enumerate(levels)
    ]
    method, description = _METHODS[kind]
    multiscale = {
        "name": name,
        "axes": [*([{"name": "c", "type": "channel"}] if channels else []), *axes],
        "datasets": datasets,
        "type": method,
        "metadata": {"description": description, "method": "lsdflow-view export ome"},
    }
    of_labels = {"image-label": {"source": {"image": "../../"}}} if kind == "labels" else {}
    return {"version": VERSION, "multiscales": [multiscale], **of_labels}


def labels_metadata(names: Sequence[str]) -> dict[str, Any]:
    """The `ome` block of the group that holds label images."""
    return {"version": VERSION, "labels": list(names)}


def write_group(folder: Path, attributes: Mapping[str, Any]) -> None:
    """Write a zarr 3 group with these attributes, or replace the attributes of an existing one."""
    write_json(folder / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})
