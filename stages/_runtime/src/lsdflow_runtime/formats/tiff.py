"""TIFF: a folder of single-page slices (sorted by the numbers in their names), a multi-page file, BigTIFF.

A folder with a gap in the numbers of its files is refused, because a missing slice would shift all later ones.

A voxel size is used only if the file has one for z as well: OME-XML (PhysicalSizeZ/Y/X with units) or ImageJ
(spacing + unit + pixels per unit). The TIFF resolution tag (dots per inch) is ignored.

Slices are decoded one at a time, and only the strips or tiles that overlap the box.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.geometry import Nm3
from lsdflow_runtime.formats.attributes import is_length, nm_per
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3
from lsdflow_runtime.formats.source import SourceVolume, reading

SUFFIXES = (".tif", ".tiff")
SIGNATURES = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
SLICES_LISTED = 5
Slices = tuple[slice, ...]


def is_tiff(path: Path) -> bool:
    """True if a file has a TIFF or BigTIFF signature."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) in SIGNATURES


def is_tiff_folder(folder: Path) -> bool:
    """True if a folder holds TIFF slices."""
    return folder.is_dir() and any(entry.suffix.lower() in SUFFIXES for entry in folder.iterdir())


def open_tiff(path: Path, dataset: str = "") -> SourceVolume:
    """Open a TIFF file or a folder of slices. TIFF has no datasets: `dataset` must be empty.

    Raises:
        ConfigError: a dataset was named.
        BadData: colour images, slices of different shape or dtype, a file that is not a TIFF.
    """
    if dataset.strip("/"):
        raise ConfigError("a TIFF has no datasets", where=path, found=repr(dataset), fix="leave the dataset name out")
    return _open_folder(path) if path.is_dir() else _open_file(path)


def _open_file(path: Path) -> SourceVolume:
    where = str(path)
    with reading(where):
        tiff = tifffile.TiffFile(path)
        series = tiff.series[0]
        array = zarr.open_array(store=series.aszarr(), mode="r")
    axes = _axes(series.axes, where)
    return SourceVolume(
        where=where,
        form="tiff",
        axes=axes,
        stored_shape=tuple(array.shape),
        dtype=np.dtype(array.dtype),
        fetch=lambda slices: np.asarray(array[slices]),
        files=_files_of(series, path),
        claims=tuple(_claims(tiff, where)),
        closer=tiff.close,
    )


def _files_of(series: tifffile.TiffPageSeries, path: Path) -> tuple[Path, ...]:
    """The files of a series: one, unless its OME-XML names others."""
    if not series.is_multifile:
        return (path,)
    return tuple(sorted({Path(page.parent.filehandle.path) for page in series.pages if page is not None}))


def _open_folder(folder: Path) -> SourceVolume:
    files = sorted((f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES), key=natural_order)
    if not files:
        raise MissingInput("no TIFF slices in the folder", where=folder, wanted="*.tif or *.tiff")
    _refuse_missing_slices(files, folder)
    shape, dtype = _slice_form(files[0])
    return SourceVolume(
        where=f"{folder} ({len(files)} slices)",
        form="tiff slices",
        axes="zyx",
        stored_shape=(len(files), *shape),
        dtype=dtype,
        fetch=_slice_reader(files, shape, dtype),
        files=tuple(files),
    )


def _refuse_missing_slices(files: list[Path], folder: Path) -> None:
    """BadData (65) naming the first slices that are missing in the numbering of the names.

    The number of a slice is the only number in which the names differ; names that differ otherwise are not checked.
    A constant step of any size counts as complete.
    """
    numbers = _slice_numbers([file.name for file in files])
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) < 2:
        return
    step = max(1, min(steps))
    missing = [n for before, after in pairwise(numbers) for n in range(before + step, after, step)]
    place = next(i for i, (before, after) in enumerate(pairwise(numbers)) if after - before != step)
    raise BadData(
        f"{len(missing)} slices are missing in the folder" if missing else "two slices have the same number",
        where=folder,
        wanted=f"numbers in steps of {step}"
        + (f", also {', '.join(map(str, missing[:SLICES_LISTED]))}" * bool(missing)),
        found=f"{files[place + 1].name} follows {files[place].name}",
        fix="copy the missing slices; if they do not exist, put copies of their neighbours in their place; if the "
        "numbers are not those of sections, number the files again",
    )


def _slice_numbers(names: list[str]) -> list[int]:
    """The only number in which sorted names differ; empty if they differ otherwise."""
    parts = [[text.lstrip("0") if text.isdigit() else text for text in re.split(r"(\d+)", name)] for name in names]
    if len({len(of_name) for of_name in parts}) > 1:
        return []
    varying = [column for column in zip(*parts, strict=True) if len(set(column)) > 1]
    if len(varying) != 1 or not all(text.isdigit() or not text for text in varying[0]):
        return []
    return [int(text or "0") for text in varying[0]]


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sort key by which slice_9 comes before slice_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _slice_form(file: Path) -> tuple[tuple[int, int], np.dtype[np.generic]]:
    with reading(str(file)), tifffile.TiffFile(file) as tiff:
        page = tiff.pages.first
        if len(tiff.pages) != 1 or page.ndim != 2:
            raise BadData(
                "a slice of the folder is not one grey page",
                where=file,
                wanted="one page, y,x",
                found=f"{len(tiff.pages)} pages of shape {page.shape}",
                fix="give a multi-page file by its own name; split colour channels",
            )
        return (int(page.shape[0]), int(page.shape[1])), np.dtype(page.dtype)


def _slice_reader(
    files: list[Path], shape: tuple[int, int], dtype: np.dtype[np.generic]
) -> Callable[[Slices], NDArray[np.generic]]:
    def fetch(slices: Slices) -> NDArray[np.generic]:
        """Read a box, (z, y, x) in the dtype of the files; BadData as read_slice."""
        rows, columns = slices[1:]
        return np.stack([read_slice(file, rows, columns) for file in files[slices[0]]])

    def read_slice(file: Path, rows: slice, columns: slice) -> NDArray[np.generic]:
        """Read a part of one slice (y, x); BadData if its shape or dtype differs from those of the first."""
        found = _slice_form(file)
        if found != (shape, dtype):
            raise BadData(
                "the slices of the folder differ", where=file, wanted=f"{shape} {dtype}", found=f"{found[0]} {found[1]}"
            )
        with tifffile.TiffFile(file) as tiff:
            page = zarr.open_array(store=tiff.pages.first.aszarr(), mode="r")
            return np.asarray(page[rows, columns])

    return fetch


def _axes(named: str, where: str) -> str:
    """Our axis letters for those of tifffile.

    Pages without metadata (Q, I), and a stack saved as a time series (T without Z, a common mistake in ImageJ), are z.
    """
    letters = named.lower()
    if "s" in letters:
        raise BadData("the TIFF is a colour image", where=where, wanted="grey values", found=f"axes {named}")
    if "z" not in letters:
        depth = next((letter for letter in "qit" if letter in letters), None)
        letters = letters.replace(depth, "z") if depth else letters
    return letters


def _claims(tiff: tifffile.TiffFile, where: str) -> list[GeometryClaim]:
    claims = []
    if tiff.is_ome and tiff.ome_metadata:
        claims += _ome_claim(tiff.ome_metadata, where)
    if tiff.is_imagej and tiff.imagej_metadata:
        claims += _imagej_claim(tiff, where)
    return claims


def _ome_claim(xml: str, where: str) -> list[GeometryClaim]:
    """PhysicalSizeZ/Y/X of the first Pixels element; without a unit, OME means um."""
    with reading(f"{where} OME-XML"):
        root = ElementTree.fromstring(xml)  # noqa: S314 (expat refuses entity bombs since 2.4.1)
    pixels = next((item for item in root.iter() if item.tag.rsplit("}", 1)[-1] == "Pixels"), None)
    sizes = [] if pixels is None else [_ome_size(pixels.attrib, axis, where) for axis in "ZYX"]
    if not sizes or None in sizes:
        return []
    return [GeometryClaim(f"OME-XML of {where}", _six_digits([size or 0.0 for size in sizes], where))]


def _ome_size(attributes: dict[str, str], axis: str, where: str) -> float | None:
    text = attributes.get(f"PhysicalSize{axis}")
    if text is None:
        return None
    size = to_nm3([float(text)] * 3, where, f"PhysicalSize{axis}")[0]
    unit = attributes.get(f"PhysicalSize{axis}Unit", "µm")
    return size * nm_per(unit, where) if is_length(unit) else None


def _imagej_claim(tiff: tifffile.TiffFile, where: str) -> list[GeometryClaim]:
    """spacing (z) in `unit`; y and x from pixels per unit."""
    metadata: dict[str, Any] = tiff.imagej_metadata or {}
    unit, spacing = str(metadata.get("unit", "")), metadata.get("spacing")
    tags = tiff.pages.first.tags
    if spacing is None or not is_length(unit) or "XResolution" not in tags or "YResolution" not in tags:
        return []
    per_unit = [tags[f"{axis}Resolution"].value for axis in "YX"]
    if any(not count for count, _ in per_unit):
        return []
    sizes = [float(spacing), *(of / count for count, of in per_unit)]
    return [GeometryClaim(f"ImageJ metadata of {where}", _six_digits([s * nm_per(unit, where) for s in sizes], where))]


def _six_digits(sizes: list[float], where: str) -> Nm3:
    """The sizes rounded to six digits, because TIFF rationals are not exact: 7.9999998 nm means 8."""
    return to_nm3([float(f"{size:.6g}") for size in sizes], where, "voxel size")
