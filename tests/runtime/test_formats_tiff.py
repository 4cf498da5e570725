"""TIFF files are read whole and as viewers show them, or refused: never with zeros, and never a part of the pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from lsdflow_contract.errors import BadData, StageError
from lsdflow_contract.geometry import Box
from lsdflow_runtime.formats.detect import open_source

RAW = np.random.default_rng(0).integers(1, 255, (9, 32, 48), np.uint8)
GREYS = np.tile(np.arange(256, dtype=np.uint16) * 257, (3, 1))
COLOURS = np.random.default_rng(1).integers(0, 2**16, (3, 256), np.uint16)


def pages(path: Path, planes: Sequence[np.ndarray], **options: Any) -> Path:
    """A TIFF of pages without metadata of tifffile; an option that is a function is called with the page number."""
    with tifffile.TiffWriter(path) as writer:
        for number, plane in enumerate(planes):
            chosen = {name: value(number) if callable(value) else value for name, value in options.items()}
            writer.write(plane, **{"metadata": None, "contiguous": False, **chosen})
    return path


def read(path: Path) -> np.ndarray:
    with open_source(path) as volume:
        corner = Box((3, 5, 7), (2, 20, 30))
        whole = volume.read(volume.box)
        if whole.shape[-3:] == RAW.shape:
            np.testing.assert_array_equal(volume.read(corner), whole[..., 3:5, 5:25, 7:37])
        return whole


def refused(path: Path, *words: str) -> BadData:
    with pytest.raises(BadData) as caught:
        read(path)
    assert all(word in caught.value.message() for word in words), caught.value.message()
    return caught.value


# Storage of pages


@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "zstd", "packbits", "lzma"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_pages_of_any_compression_in_strips_or_tiles_are_read(
    tmp_path: Path, compression: str | None, tile: tuple[int, int] | None, byteorder: str
) -> None:
    data = RAW.astype(np.uint16) * 200
    with tifffile.TiffWriter(tmp_path / "a.tif", byteorder=byteorder) as writer:
        for plane in data:
            writer.write(plane, compression=compression, tile=tile, rowsperstrip=None if tile else 7, metadata=None)
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), data)


def test_grey_jpeg_pages_are_read(tmp_path: Path) -> None:
    path = pages(tmp_path / "a.tif", RAW, compression="jpeg")
    np.testing.assert_array_equal(read(path), np.stack([page.asarray() for page in tifffile.TiffFile(path).pages]))


@pytest.mark.parametrize("bigtiff", [False, True])
def test_a_stack_of_imagej_with_one_directory_is_read_and_refused_where_it_is_cut(
    tmp_path: Path, bigtiff: bool
) -> None:
    path = tmp_path / "a.tif"
    if bigtiff:
        tifffile.imwrite(path, RAW, bigtiff=True, truncate=True)
    else:
        tifffile.imwrite(path, RAW, imagej=True, metadata={"axes": "ZYX"})
    np.testing.assert_array_equal(read(path), RAW)
    content = path.read_bytes()
    path.write_bytes(content[: -2 * RAW[0].size])
    refused(path, "a.tif")


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, compression: str | None) -> None:
    path = pages(tmp_path / "a.tif", RAW, compression=compression)
    content = path.read_bytes()
    for size in range(0, len(content) - 1, len(content) // 60):
        path.write_bytes(content[:size])
        with pytest.raises(StageError):
            read(path)


def test_a_page_without_data_is_refused_not_read_as_zeros(tmp_path: Path) -> None:
    path = pages(tmp_path / "a.tif", RAW, compression="zlib", rowsperstrip=8)
    with tifffile.TiffFile(path) as tiff:
        tag = tiff.pages.get(4).tags["StripByteCounts"]
        size = {"SHORT": 2, "LONG": 4}[tag.dtype.name]
    content = bytearray(path.read_bytes())
    content[tag.valueoffset : tag.valueoffset + size] = bytes(size)
    path.write_bytes(content)
    refused(path, "not complete")


def test_a_compression_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    path = pages(tmp_path / "a.tif", RAW)
    content = path.read_bytes()
    for number in range(len(RAW)):
        with tifffile.TiffFile(path) as tiff:
            offset = tiff.pages.get(number).tags["Compression"].valueoffset
        content = content[:offset] + (32809).to_bytes(2, "little") + content[offset + 2 :]
    path.write_bytes(content)
    assert "re-copy" not in refused(path, "compression", "32809").fix


# Pages that differ


@pytest.mark.parametrize(
    "other", [RAW[0].astype(np.uint16), RAW[0].view(np.int8), RAW[0, :, :-1], RAW[0].astype(np.float32)]
)
@pytest.mark.parametrize("where", [1, 5, 7, 8])
def test_a_page_of_another_type_sign_or_size_is_refused_by_number(
    tmp_path: Path, other: np.ndarray, where: int
) -> None:
    planes = [*RAW[:where], other, *RAW[where + 1 :]]
    error = refused(pages(tmp_path / "a.tif", planes))
    assert f"page {where}" in error.where or "2 series" in error.what


def test_pages_stored_in_two_ways_are_one_volume(tmp_path: Path) -> None:
    path = pages(tmp_path / "a.tif", RAW, compression=lambda number: "zlib" if number > 4 else None)
    np.testing.assert_array_equal(read(path), RAW)


def test_several_series_are_refused_with_what_each_is(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(RAW)
        writer.write(RAW.astype(np.uint16))
    refused(tmp_path / "a.tif", "2 series", "(9, 32, 48) uint8", "(9, 32, 48) uint16")


@pytest.mark.parametrize("ome", [False, True])
def test_pyramids_and_thumbnails_are_not_sections(tmp_path: Path, ome: bool) -> None:
    with tifffile.TiffWriter(tmp_path / ("a.ome.tif" if ome else "a.tif")) as writer:
        writer.write(RAW, subifds=1, metadata={"axes": "ZYX"})
        writer.write(RAW[:, ::2, ::2], subfiletype=1)
    np.testing.assert_array_equal(read(next(tmp_path.iterdir())), RAW)


def test_reduced_pages_between_the_sections_are_not_sections(tmp_path: Path) -> None:
    planes = [plane for section in RAW for plane in (section, section[::2, ::2])]
    path = pages(tmp_path / "a.tif", planes, subfiletype=lambda number: number % 2)
    np.testing.assert_array_equal(read(path), RAW)


# Grey values as viewers show them


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_white_is_zero_is_inverted(tmp_path: Path, dtype: type, compression: str | None) -> None:
    data = RAW.astype(dtype) * (1 if dtype == np.uint8 else 200)
    stored = np.iinfo(dtype).max - data
    path = pages(tmp_path / "a.tif", stored, photometric="miniswhite", compression=compression)
    np.testing.assert_array_equal(read(path), data)


def test_white_is_zero_of_twelve_bits_is_inverted(tmp_path: Path) -> None:
    data = RAW.astype(np.uint16) * 16
    path = pages(tmp_path / "a.tif", 4095 - data, photometric="miniswhite", bitspersample=12)
    np.testing.assert_array_equal(read(path), data)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_white_is_zero_of_signed_or_real_numbers_is_refused(tmp_path: Path, dtype: type) -> None:
    refused(pages(tmp_path / "a.tif", RAW.astype(dtype), photometric="miniswhite"), "WhiteIsZero", np.dtype(dtype).name)


@pytest.mark.parametrize("bits", [1, 8])
def test_labels_and_masks_keep_the_stored_numbers_of_white_is_zero(tmp_path: Path, bits: int) -> None:
    """tifffile stores a bool mask as WhiteIsZero: inverted, it would train on all that it excludes."""
    mask = RAW > 60 if bits == 1 else RAW
    tifffile.imwrite(tmp_path / "a.tif", mask, photometric=None if bits == 1 else "miniswhite")
    with open_source(tmp_path / "a.tif") as volume:
        np.testing.assert_array_equal(volume.as_numbers().read(volume.box), mask)
        np.testing.assert_array_equal(volume.read(volume.box), ~mask)


@pytest.mark.parametrize("folder", [False, True])
def test_pages_of_both_kinds_are_read_as_viewers_show_them(tmp_path: Path, folder: bool) -> None:
    planes = [255 - plane if number % 2 else plane for number, plane in enumerate(RAW)]

    def kind(number: int) -> str:
        return "miniswhite" if number % 2 else "minisblack"

    if folder:
        for number, plane in enumerate(planes):
            pages(tmp_path / f"{number}.tif", [plane], photometric=kind(number))
    path = tmp_path if folder else pages(tmp_path / "a.tif", planes, photometric=kind)
    np.testing.assert_array_equal(read(path), RAW)


@pytest.mark.parametrize(("colormap", "palette"), [(GREYS, False), (COLOURS, True)])
def test_a_palette_is_said_unless_it_is_grey(tmp_path: Path, colormap: np.ndarray, palette: bool) -> None:
    path = pages(tmp_path / "a.tif", RAW, photometric="palette", colormap=colormap)
    np.testing.assert_array_equal(read(path), RAW)
    with open_source(path) as volume:
        assert volume.palette is palette


def test_a_page_with_a_palette_among_others_is_refused(tmp_path: Path) -> None:
    pages(tmp_path / "0.tif", RAW[:1])
    pages(tmp_path / "1.tif", RAW[1:2], photometric="palette", colormap=COLOURS)
    refused(tmp_path, "1.tif", "palette")


def test_pages_of_several_sections_are_not_called_missing(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.pad(RAW, ((0, 7), (0, 0), (0, 0))), tile=(16, 16, 16))
    assert "missing" not in refused(tmp_path / "a.tif", "a page of the TIFF is no image", "y, x").message()


def test_one_slice_of_a_folder_is_refused_with_the_advice_to_name_the_folder(tmp_path: Path) -> None:
    assert "all sections" in refused(slices(tmp_path, ["s_0"]) / "s_0.tif", "one picture").fix
    assert "the folder" in refused(slices(tmp_path, ["s_0", "s_1"]) / "s_0.tif", "one picture").fix


# Metadata that name planes

OME = (
    '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{uuid}">'
    '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint8" SizeX="48" SizeY="32" SizeZ="9" '
    'SizeC="1" SizeT="1"><Channel ID="Channel:0:0" SamplesPerPixel="1"/>{data}</Pixels></Image></OME>'
)


def tiff_data(names: Sequence[int], file: Callable[[int], str] = lambda _: "") -> str:
    return "".join(
        f'<TiffData IFD="{0 if file(z) else z}" FirstZ="{z}" PlaneCount="1">{file(z)}</TiffData>' for z in names
    )


def described(number: int, text: str) -> str | None:
    return None if number else text


def ome(path: Path, planes: np.ndarray, data: str) -> Path:
    return pages(path, planes, description=lambda number: described(number, OME.format(uuid=path.name, data=data)))


def test_an_ome_tiff_is_read_if_every_plane_is_there(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(ome(tmp_path / "a.ome.tif", RAW, tiff_data(range(9)))), RAW)
    refused(ome(tmp_path / "b.ome.tif", RAW[:5], tiff_data(range(9))), "missing: 4 of 9", "b.ome.tif")
    refused(ome(tmp_path / "c.ome.tif", RAW, tiff_data(range(6))), "missing: 3 of 9", "c.ome.tif")
    refused(ome(tmp_path / "d.ome.tif", RAW[:5], "<TiffData/>"), "missing: 4 of 9")
    refused(
        ome(tmp_path / "e.ome.tif", np.concatenate([RAW, RAW[:2]]), tiff_data(range(9))), "2 pages that are no planes"
    )
    refused(ome(tmp_path / "f.ome.tif", RAW, tiff_data(range(9)).replace('IFD="8"', 'IFD="7"')), "9 planes in 8 pages")


@pytest.mark.parametrize("spoil", ["take away", "cut", "empty", "replace"])
def test_an_ome_tiff_of_several_files_needs_each_of_them(tmp_path: Path, spoil: str) -> None:
    def file(z: int) -> str:
        return f'<UUID FileName="{z}.ome.tif">urn:uuid:{z}.ome.tif</UUID>'

    for z, plane in enumerate(RAW):
        ome(tmp_path / f"{z}.ome.tif", plane[None], tiff_data(range(9), file))
    np.testing.assert_array_equal(read(tmp_path / "0.ome.tif"), RAW)
    for z in (1, 4, 8):
        lost = tmp_path / f"{z}.ome.tif"
        content = lost.read_bytes()
        if spoil == "take away":
            lost.unlink()
        elif spoil == "replace":
            tifffile.imwrite(lost, RAW[0, :5])
        else:
            lost.write_bytes(b"" if spoil == "empty" else content[: len(content) // 2])
        with pytest.raises(StageError) as caught:
            read(tmp_path / "0.ome.tif")
        assert re.search(rf"{z}\.ome\.tif|planes of the TIFF are missing: 1 of \d+", caught.value.message())
        lost.write_bytes(content)


def test_an_ome_tiff_whose_xml_is_in_a_lost_file_is_refused(tmp_path: Path) -> None:
    xml = '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><BinaryOnly MetadataFile="a.companion.ome" '
    path = pages(tmp_path / "a.ome.tif", RAW[:4], description=lambda n: described(n, xml + 'UUID="urn:uuid:1"/></OME>'))
    refused(path, "ome metadata", "companion")


@pytest.mark.parametrize(
    ("text", "words"), [("images=12\nslices=12\n", "a.tif"), ("images=6\nslices=6\n", "6 planes in 9 pages")]
)
def test_imagej_metadata_that_do_not_fit_the_pages_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = pages(
        tmp_path / "a.tif", RAW, compression="zlib", description=lambda n: described(n, f"ImageJ=1.53t\n{text}")
    )
    refused(path, words)


def test_planes_that_imagej_calls_channels_are_not_taken_for_sections(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RAW, imagej=True, metadata={"axes": "CYX"})
    assert "Properties" in refused(tmp_path / "a.tif", "channels", "CYX").fix


def test_channels_and_sections_of_imagej_are_told_apart(tmp_path: Path) -> None:
    data = np.stack([RAW, 255 - RAW])
    tifffile.imwrite(tmp_path / "a.tif", data.swapaxes(0, 1), imagej=True, metadata={"axes": "ZCYX"})
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), data)


# Folders


def slices(folder: Path, names: Sequence[str]) -> Path:
    for number, name in enumerate(names):
        tifffile.imwrite(folder / f"{name}.tif", RAW[number % len(RAW)])
    return folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["z0_c0", "z0_c1", "z1_c0", "z1_c1"], ["z0, z1", "c0, c1"]),
        (["r1_s01", "r1_s02", "r2_s01", "r2_s02"], ["r1, r2", "s1, s2"]),
        (["a_0", "a_1", "b_0", "b_1"], ["2 like a_#", "2 like b_#"]),
        (["s_0", "s_1", "s_2", "overview"], ["3 like s_#", "1 like overview"]),
        (["s_0", "s_1", "s_1_fixed"], ["1 like s_#_fixed"]),
        (["top", "middle", "x1"], ["1 like top"]),
        (["1_05", "1_06", "2_01", "2_02"], ["1, 2"]),
    ],
)
def test_files_that_are_not_one_series_of_sections_are_refused_with_the_series(
    tmp_path: Path, names: list[str], words: list[str]
) -> None:
    refused(slices(tmp_path, names), "series", *words)


@pytest.mark.parametrize(
    "names", [["s_00_z=0.10um", "s_01_z=0.25um", "s_02_z=0.31um"], ["run1_s8", "run1_s9", "run2_s10"]]
)
def test_other_numbers_in_the_names_may_vary_with_that_of_the_section(tmp_path: Path, names: list[str]) -> None:
    np.testing.assert_array_equal(read(slices(tmp_path, names)), RAW[:3])


def test_hidden_files_of_macos_are_not_slices(tmp_path: Path) -> None:
    slices(tmp_path, ["s_0", "s_1"])
    (tmp_path / "._s_0.tif").write_bytes(b"\0\5\x16\7Mac OS X")
    np.testing.assert_array_equal(read(tmp_path), RAW[:2])


def test_slices_with_a_thumbnail_are_read_and_slices_of_two_pages_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        pages(tmp_path / f"{number}.tif", [RAW[number], RAW[number, ::4, ::4]], subfiletype=lambda page: page)
    np.testing.assert_array_equal(read(tmp_path), RAW[:2])
    pages(tmp_path / "1.tif", RAW[:2])
    refused(tmp_path, "1.tif", "2 pages")


@pytest.mark.parametrize("spoil", ["cut", "empty", "replace"])
def test_each_slice_that_is_cut_emptied_or_replaced_is_named(tmp_path: Path, spoil: str) -> None:
    slices(tmp_path, [f"s_{number}" for number in range(4)])
    for file in sorted(tmp_path.iterdir()):
        content = file.read_bytes()
        if spoil == "replace":
            tifffile.imwrite(file, RAW[0, :, :5])
        else:
            file.write_bytes(content[: len(content) // 2] if spoil == "cut" else b"")
        error = refused(tmp_path)
        assert file.name in error.where or spoil == "replace"
        file.write_bytes(content)
