"""TIFF: a folder of single-page slices (sorted by the numbers in their names), a multi-page file, BigTIFF, OME-TIFF.

Every plane of a volume is a page of a file. Only the strips or tiles that overlap the box are decoded, to the grey
values that viewers show (labels and masks: to the stored numbers). All pages have one shape and type, each is used, and
none that the metadata name is absent (tifffile reads zeros for it). Pages that are marked as reduced copies
(thumbnails, pyramids) are ignored.

A voxel size is used only if the file has one for z as well: OME-XML (PhysicalSizeZ/Y/X with units) or ImageJ
(spacing + unit + pixels per unit). The TIFF resolution tag (dots per inch) is ignored.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import tifffile
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.geometry import Nm3
from lsdflow_runtime.formats.attributes import is_length, nm_per
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3
from lsdflow_runtime.formats.slices import natural_order, refuse_other_series, slices_in
from lsdflow_runtime.formats.source import SourceVolume, reading

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it warns of is refused here
SIGNATURES = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
LISTED = 5
PAGES_KEPT = 256
PAGES_CHECKED = 200
# PhotometricInterpretation of images with one value per pixel; YCbCr (6) is that of some grey JPEGs.
WHITE_IS_ZERO, PALETTE = 0, 3
ONE_VALUE = (WHITE_IS_ZERO, 1, PALETTE, 6)
JPEG = (6, 7, 34892, 33007)
TO_GREY = "save it as grey values (ImageJ: Image > Type > 8-bit)"
GREY_RAMP = np.arange(256)


class Plane(NamedTuple):
    """A plane: its file, the offset of the directory of its page, and how far behind that page's its data are."""

    file: Path
    offset: int
    shift: int = 0


class Form(NamedTuple):
    """What is the same for all planes of a volume. palette: the values are indices of colours."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    palette: bool


def is_tiff(path: Path) -> bool:
    """True if a file has a TIFF or BigTIFF signature."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) in SIGNATURES


def is_tiff_folder(folder: Path) -> bool:
    """True if a folder holds TIFF slices."""
    return folder.is_dir() and bool(slices_in(folder))


def open_tiff(path: Path, dataset: str = "") -> SourceVolume:
    """Open a TIFF file or a folder of slices. TIFF has no datasets: `dataset` must be empty.

    Raises:
        ConfigError: a dataset was named.
        BadData: colour images, pages that differ or are missing, several series, a file that is not a TIFF.
    """
    if dataset.strip("/"):
        raise ConfigError("a TIFF has no datasets", where=path, found=repr(dataset), fix="leave the dataset name out")
    return _open_folder(path) if path.is_dir() else _open_file(path)


def _open_file(path: Path) -> SourceVolume:
    where = str(path)
    with reading(where), tifffile.TiffFile(path) as tiff:
        axes, lengths, planes = _planes(tiff, path)
        if axes == "yx":
            fix = "name the folder of the slices" if len(slices_in(path.parent)) > 1 else "give a file of all sections"
            raise BadData("the TIFF is one picture", where=path, wanted="a stack of sections", found="1 page", fix=fix)
        claims = _claims(tiff, where)
    return _volume(where, "tiff", axes, lengths, planes, claims)


def _open_folder(folder: Path) -> SourceVolume:
    files = sorted(slices_in(folder), key=natural_order)
    if not files:
        raise MissingInput("no TIFF slices in the folder", where=folder, wanted="*.tif or *.tiff")
    refuse_other_series(files, folder)
    planes = [Plane(file, 0) for file in files]
    return _volume(f"{folder} ({len(files)} slices)", "tiff slices", "zyx", [len(files)], planes)


def _volume(
    where: str,
    form: str,
    axes: str,
    lengths: Sequence[int],
    planes: Sequence[Plane],
    claims: Sequence[GeometryClaim] = (),
) -> SourceVolume:
    """A volume of planes in C order of all axes but y and x, of these `lengths`."""
    page_of = lru_cache(PAGES_KEPT)(_page_at)
    first = page_of(planes[0].file, planes[0].offset)[1]

    def page_at(number: int) -> tifffile.TiffPage:
        """The page of a plane; BadData if it differs from the first."""
        plane = planes[number]
        page, found = page_of(plane.file, plane.offset)
        if found != first:
            place = str(plane.file) + f", page {number}" * (plane.offset > 0)
            shown = [f"{f.shape} {f.dtype}" + ", palette" * f.palette for f in (first, found)]
            what = "the pages of the TIFF differ" if plane.offset else "the slices of the folder differ"
            raise BadData(what, where=place, wanted=shown[0], found=shown[1])
        return page

    def fetch(slices: tuple[slice, ...], *, shown: bool = True) -> NDArray[np.generic]:
        """Read a box in stored axis order; BadData if a page differs or is not complete."""
        numbers = np.arange(len(planes)).reshape(lengths)[slices[:-2]]
        parts = [_read(page_at(n), planes[n], *slices[-2:], shown=shown) for n in numbers.ravel().tolist()]
        return np.stack(parts).reshape(*numbers.shape, *parts[0].shape)

    with reading(where):
        for number in range(0, len(planes), -(-len(planes) // PAGES_CHECKED)):
            page_at(number)
    return SourceVolume(
        where=where,
        form=form,
        axes=axes,
        stored_shape=(*lengths, *first.shape),
        dtype=first.dtype,
        fetch=fetch,
        files=tuple(sorted({plane.file for plane in planes})),
        claims=tuple(claims),
        palette=first.palette,
        fetch_numbers=partial(fetch, shown=False),
    )


def _page_at(file: Path, offset: int) -> tuple[tifffile.TiffPage, Form]:
    """The page whose directory is at `offset`; 0: the only page of a slice, BadData if there are more."""
    with reading(str(file)), tifffile.TiffFile(file) as tiff:
        if offset:
            tiff.filehandle.seek(offset)
            page = tifffile.TiffPage(tiff, index=0)
            return page, _form_of(page, str(file))
        _refuse_lost_pages(tiff, file)
        if len(pages := _full_pages(tiff)) != 1:
            raise BadData(
                "a slice of the folder is not one grey page",
                where=file,
                wanted="one page, y,x",
                found=f"{len(pages)} pages",
                fix="give a multi-page file by its own name",
            )
        return pages[0], _form_of(pages[0], str(file))


def _form_of(page: tifffile.TiffPage, where: str) -> Form:
    """Shape, dtype and meaning of a page; BadData if it is no image of one value per pixel that can be decoded."""
    meaning = page.photometric if "PhotometricInterpretation" in page.tags else 1
    if page.samplesperpixel != 1 or meaning not in ONE_VALUE:
        found = f"{getattr(meaning, 'name', meaning)}, {page.samplesperpixel} values per pixel"
        raise BadData("the TIFF is a colour image", where=where, wanted="grey values", found=found, fix=TO_GREY)
    if page.dtype is None or page.ndim != 2:
        found = f"{page.shape}, {page.bitspersample} bits of sample format {page.sampleformat}"
        raise BadData("a page of the TIFF is no image of numbers", where=where, wanted="y, x", found=found)
    dtype: np.dtype[np.generic] = np.dtype(page.dtype)
    if meaning == WHITE_IS_ZERO and dtype.kind not in "bu":
        what, found, fix = "which values of the TIFF are white is not clear", f"WhiteIsZero of {dtype}", "save it again"
        raise BadData(what, where=where, wanted="BlackIsZero", found=found, fix=f"{fix}, as BlackIsZero")
    if page.compression != 1 and page.compression not in tifffile.TIFF.DECOMPRESSORS:
        raise BadData(
            "the compression of the TIFF is not supported",
            where=where,
            found=f"compression {page.compression!r}",
            fix="save it again with deflate, LZW or zstd, or without compression",
        )
    _ = page.decode  # of a JPEG, it looks into the open file
    return Form(tuple(page.shape), dtype, meaning == PALETTE and not _is_grey(page))


def _is_grey(page: tifffile.TiffPage) -> bool:
    """True if each value of a palette is shown as a grey of that value."""
    colours = page.colormap
    return colours is not None and all(np.array_equal(colour >> 8, GREY_RAMP) for colour in colours)


def _read(page: tifffile.TiffPage, plane: Plane, rows: slice, columns: slice, *, shown: bool) -> NDArray[np.generic]:
    """A part (y, x) of a plane, as viewers show it or as stored; BadData if a strip or tile is missing or cut."""
    values: NDArray[Any] = np.empty((rows.stop - rows.start, columns.stop - columns.start), page.dtype)
    height, width = page.chunks
    tables = {"jpegtables": page.tags.valueof("JPEGTables")} if page.compression in JPEG else {}
    whole = page.is_contiguous  # one block of numbers, of which rows can be read
    with plane.file.open("rb") as file:
        if whole:
            stored = np.dtype(page.dtype).newbyteorder(page.parent.byteorder)
            row_bytes = page.imagewidth * stored.itemsize
            begin = page.dataoffsets[0] + plane.shift + rows.start * row_bytes
            content = _bytes_at(file, begin, len(values) * row_bytes)
            values[:] = np.frombuffer(content, stored).reshape(len(values), -1)[:, columns]
        for row in () if whole else range(rows.start // height, -(-rows.stop // height)):
            for column in range(columns.start // width, -(-columns.stop // width)):
                index = row * math.ceil(page.imagewidth / width) + column
                content = _bytes_at(file, page.dataoffsets[index], page.databytecounts[index])
                decoded = np.asarray(page.decode(content, index, **tables, _fullsize=page.is_tiled)[0])[0, :, :, 0]
                y, x = row * height - rows.start, column * width - columns.start
                part = decoded[max(-y, 0) : len(values) - y, max(-x, 0) : values.shape[1] - x]
                y, x = max(y, 0), max(x, 0)
                values[y : y + part.shape[0], x : x + part.shape[1]] = part
    if shown and page.photometric == WHITE_IS_ZERO and "PhotometricInterpretation" in page.tags:
        values = ~values if page.dtype == bool else values ^ ((1 << page.bitspersample) - 1)
    return values


def _bytes_at(file: Any, begin: int, count: int) -> bytes:
    file.seek(begin)
    content: bytes = file.read(count)
    if not count or len(content) != count:
        found = f"{len(content)} of {count} bytes at {begin}"
        raise BadData("a page of the TIFF is not complete", where=file.name, found=found, fix="copy the file again")
    return content


def _planes(tiff: tifffile.TiffFile, path: Path) -> tuple[str, list[int], list[Plane]]:
    """The axes of a file, the length of each but y and x, and its planes; BadData if pages are missing or left over."""
    _refuse_lost_pages(tiff, path)
    try:
        found = tiff.series
    except RuntimeError:  # a page that differs from the others, which is named when it is read
        pages = _full_pages(tiff)
        return "zyx", [len(pages)], [Plane(path, page.offset) for page in pages]
    several = [item for item in found if not (item.keyframe.is_reduced or isinstance(item.keyframe.index, tuple))]
    series, where = several[0], str(path)
    described = next((kind for kind in ("ome", "imagej", "shaped") if getattr(tiff, f"is_{kind}")), None)
    if described and series.kind in ("generic", "uniform"):
        raise _misfit(path, f"{described} metadata, {len(tiff.pages)} pages of {series.keyframe.shape}")
    if series.kind == "generic" and len({_form_of(item.keyframe, where) for item in several}) == 1:
        pages = _full_pages(tiff)  # the same images, perhaps stored differently
        lengths = [len(pages)] if len(pages) > 1 else []
        return "zyx"[-2 - len(lengths) :], lengths, [Plane(path, page.offset) for page in pages]
    if len(several) > 1:
        raise BadData(
            f"the TIFF has {len(several)} series in {len(tiff.pages)} pages",
            where=path,
            wanted="one volume",
            found="; ".join(f"{item.name} {item.axes} {item.shape} {item.dtype}".strip() for item in several[:LISTED]),
            fix="write the series that you want to a file of its own",
        )
    axes, lengths = _axes(series.axes, where), list(series.shape[:-2])
    count, first = math.prod(lengths), series.keyframe
    _form_of(first, where)
    frames = [frame for frame in series if frame is not None]
    if len(frames) == 1 < count and len(tiff.pages) == 1 and first.is_contiguous:
        # A stack of ImageJ, of which only the first plane has a directory.
        size = math.prod(series.shape[-2:]) * series.dtype.itemsize
        _refuse_missing(count, (path.stat().st_size - first.dataoffsets[0]) // size, path)
        return axes, lengths, [Plane(path, first.offset, number * size) for number in range(count)]
    _refuse_missing(count, len(frames), path)
    planes = [Plane(Path(frame.parent.filehandle.path), frame.offset) for frame in frames]
    used = set(planes)
    if len(used) != count:
        raise _misfit(path, f"{count} planes in {len(used)} pages")
    if len(tiff.pages) > sum(plane.file == path for plane in planes):
        unused = [page.index for page in _full_pages(tiff) if Plane(path, page.offset) not in used]
        if unused:
            raise _misfit(path, f"{len(unused)} pages that are no planes: {unused[:LISTED]}")
    return axes, lengths, planes


def _misfit(path: Path, found: str) -> BadData:
    fix = "copy it again, with its companion files; or save it again, as one OME-TIFF or plain TIFF"
    return BadData("the metadata of the TIFF do not fit its pages", where=path, found=found, fix=fix)


def _full_pages(tiff: tifffile.TiffFile) -> list[tifffile.TiffPage]:
    """The pages of a file without those that are marked as reduced copies of others."""
    pages = [tiff.pages.get(number) for number in range(len(tiff.pages))]
    return [page for page in pages if isinstance(page, tifffile.TiffPage) and not page.is_reduced]


def _refuse_lost_pages(tiff: tifffile.TiffFile, path: Path) -> None:
    """BadData if the last page that can be found names a further one."""
    tiff.filehandle.seek(tiff.pages.next_page_offset or 0)
    content = tiff.filehandle.read(tiff.tiff.offsetsize)
    if len(content) != tiff.tiff.offsetsize or struct.unpack(tiff.tiff.offsetformat, content)[0]:
        _refuse_missing(len(tiff.pages) + 1, len(tiff.pages), path)


def _refuse_missing(count: int, there: int, path: Path) -> None:
    if there < count:
        raise BadData(
            f"planes of the TIFF are missing: {count - there} of {count}",
            where=path,
            wanted=f"planes: {count}, by its metadata",
            found=there,
            fix="copy it again, with the files that it names; if the recording ended early: save it as a plain TIFF",
        )


def _axes(named: str, where: str) -> str:
    """Our axis letters for those of tifffile.

    Pages without metadata (Q, I), and a stack saved as a time series (T without Z, a common mistake in ImageJ), are z.
    """
    letters = named.lower()
    if "s" in letters or not letters.endswith("yx"):
        found = f"axes {named}"
        raise BadData("the TIFF is a colour image", where=where, wanted="grey values", found=found, fix=TO_GREY)
    if "z" not in letters:
        depth = next((letter for letter in "qit" if letter in letters), None)
        letters = letters.replace(depth, "z") if depth else letters
    if letters == "cyx":
        raise BadData(
            "the planes of the TIFF are channels by its metadata, not sections",
            where=where,
            wanted="axes Z, Y, X",
            found=f"axes {named}",
            fix="if they are sections: ImageJ, Image > Properties (channels 1, slices as many as planes), and save it",
        )
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
