"""Inputs that cannot be read: each is refused with its own error, which says what there is instead."""

from __future__ import annotations

import errno
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pytest
import tifffile
import zarr
import zarr.codecs
from numcodecs import BZ2, LZ4, LZMA, AsType, Blosc, GZip, Zlib, Zstd

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, PermissionDenied, StageError, StorageFailure
from lsdflow_contract.geometry import Box
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.formats.source import SourceVolume, reading

DATA = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
DATASET = "volumes/raw"
Opener = Callable[[Path], None]


@pytest.fixture
def container(tmp_path: Path) -> Path:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path / DATASET, shape=DATA.shape, dtype="u1", chunks=(2, 3, 4), zarr_format=2)
    array[:] = DATA + 1
    zarr.open_group(path, mode="a", zarr_format=2)
    return path


def test_missing_path_names_a_near_one(container: Path) -> None:
    with pytest.raises(MissingInput) as caught:
        open_source(container.with_name("b.zarr"), None, DATASET)
    assert str(container) in caught.value.fix


def test_missing_dataset_lists_those_that_exist(container: Path) -> None:
    with pytest.raises(MissingInput) as caught:
        open_source(container, "volumes/row")
    assert DATASET in caught.value.found
    assert f"{DATASET!r}" in caught.value.fix


def test_missing_hdf5_dataset_lists_those_that_exist(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volumes/raw"] = DATA
    with pytest.raises(MissingInput, match="volumes/raw"):
        open_source(tmp_path / "a.h5", "volumes/labels")


def peak_of_refusal(source: SourceVolume) -> int:
    """Bytes that are allocated at most until the source is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match="cannot be read"):
            source.read(source.box)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("zarr_format", "shards"), [(2, None), (3, None), (3, (4, 6, 8))])
def test_a_zstd_chunk_that_claims_more_than_a_chunk_holds_is_refused_before_it_is_unpacked(
    tmp_path: Path, zarr_format: Literal[2, 3], shards: tuple[int, ...] | None
) -> None:
    codec = Zstd() if zarr_format == 2 else zarr.codecs.ZstdCodec()
    shape = {"shape": DATA.shape, "dtype": "u1", "chunks": (4, 3, 8), "shards": shards, "compressors": [codec]}
    zarr.create_array(tmp_path / "a.zarr", zarr_format=zarr_format, **shape)[:] = DATA
    source = open_source(tmp_path / "a.zarr")
    assert (source.read(source.box) == DATA).all()
    (first, *_) = sorted(p for p in (tmp_path / "a.zarr").rglob("*") if p.is_file() and "z" not in p.name)
    stored = first.read_bytes()
    bomb = Zstd().encode(bytes(50 * 2**20))
    assert len(bomb) < 2**14
    first.write_bytes(bomb if shards is None else stored.replace(stored[: stored.index(b"(\xb5/\xfd", 1)], bomb))
    assert peak_of_refusal(source) < 2**25  # modules imported meanwhile are in it; the content is 50 MiB


@pytest.mark.parametrize("codec", [Blosc(), GZip(), Zlib(), LZ4(), BZ2(), LZMA(), Zstd()], ids=lambda c: c.codec_id)
def test_a_chunk_that_unpacks_to_far_more_than_a_chunk_is_refused_in_little_memory(tmp_path: Path, codec: Any) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=(4, 3, 8), compressors=[codec], zarr_format=2)
    source = open_source(tmp_path / "a.zarr")
    assert (source.read(source.box) == DATA).all()
    content = bytes(50 * 2**20)
    bomb = zstd_without_size(content) if isinstance(codec, Zstd) else codec.encode(content)
    (tmp_path / "a.zarr" / "0.0.0").write_bytes(bomb)
    assert peak_of_refusal(source) < 2**25  # modules imported meanwhile are in it; the content is 50 MiB


def zstd_without_size(content: bytes) -> bytes:
    """A zstd frame whose header does not contain the size, as streaming writers make it."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def test_zstd_chunks_without_their_size_are_read(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=DATA.shape, compressors=[Zstd()], zarr_format=2)
    (tmp_path / "a.zarr" / "0.0.0").write_bytes(zstd_without_size(DATA.tobytes()))
    source = open_source(tmp_path / "a.zarr")
    assert (source.read(source.box) == np.asarray(array[:])).all()


def test_a_zstd_chunk_with_what_other_codecs_add_to_it_is_read(tmp_path: Path) -> None:
    codecs = [zarr.codecs.Crc32cCodec(), zarr.codecs.ZstdCodec()]
    zarr.create_array(tmp_path / "3.zarr", data=DATA, chunks=(2, 3, 4), compressors=codecs)
    wide = AsType(encode_dtype="i8", decode_dtype="u1")
    zarr.create_array(
        tmp_path / "2.zarr", data=DATA, chunks=(2, 3, 4), filters=[wide], compressors=[Zstd()], zarr_format=2
    )
    for name in ("3.zarr", "2.zarr"):
        source = open_source(tmp_path / name)
        assert (source.read(source.box) == DATA).all()


def test_voxels_that_look_like_a_zstd_chunk_are_read_where_nothing_is_compressed(tmp_path: Path) -> None:
    bomb = np.frombuffer(Zstd().encode(bytes(2**20)), np.uint8)
    array = zarr.create_array(tmp_path / "a.zarr", shape=(1, 1, len(bomb)), dtype="u1", compressors=None, zarr_format=2)
    array[:] = bomb.reshape(array.shape)
    source = open_source(tmp_path / "a.zarr")
    assert (source.read(source.box) == bomb).all()


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(b"12345678")
    with pytest.raises(BadData) as caught:
        open_source(tmp_path / "a.raw")
    for name in ("zarr", "N5", "HDF5", "TIFF", "precomputed"):
        assert name in caught.value.wanted


def test_a_pipe_is_no_volume(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(BadData, match="no volume format") as caught:
        open_source(tmp_path / "a")
    assert "pipe" in caught.value.fix


@pytest.mark.parametrize(
    ("inside", "advice"),
    [("em/s_0.tif", "name the container itself, not a folder around it: {}/em"), ("em/a.h5", "{}/em/a.h5"),
     ("color/1/z0/x0.wkw", "webknossos"), ("em/readme", "name the container itself")],
)  # fmt: skip
def test_a_folder_around_a_volume_is_refused_with_what_is_in_it(tmp_path: Path, inside: str, advice: str) -> None:
    (tmp_path / inside).parent.mkdir(parents=True)
    (tmp_path / inside).write_bytes(b"\0" * 8)
    with pytest.raises(BadData, match="no volume format") as caught:
        open_source(tmp_path)
    assert advice.format(tmp_path) in caught.value.fix


def test_name_without_content_is_no_format(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"not hdf5")
    with pytest.raises(BadData, match="no volume format"):
        open_source(tmp_path / "a.h5")


def test_two_formats_in_one_folder_are_ambiguous(container: Path) -> None:
    tifffile.imwrite(container / "slice.tif", DATA[0])
    with pytest.raises(BadData) as caught:
        open_source(container, DATASET)
    assert "zarr, tiff" in caught.value.found


def test_remote_address_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="mount or copy"):
        open_source(Path("s3://bucket/a.zarr"))


@pytest.mark.parametrize("dataset", ["../secret", "volumes/../../secret"])
def test_dataset_may_not_leave_its_container(container: Path, dataset: str) -> None:
    with pytest.raises(ConfigError, match="leave"):
        open_source(container, dataset)


def test_tiff_has_no_datasets(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", DATA, photometric="minisblack")
    with pytest.raises(ConfigError, match="no datasets"):
        open_source(tmp_path / "a.tif", DATASET)


def test_colour_tiff_is_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 8, 8, 3), np.uint8), photometric="rgb")
    with pytest.raises(BadData, match="colour"):
        open_source(tmp_path / "a.tif")


def test_slices_of_different_shape_are_refused_naming_the_file(tmp_path: Path) -> None:
    for z, shape in enumerate([(6, 8), (6, 8), (6, 9)]):
        tifffile.imwrite(tmp_path / f"{z}.tif", np.zeros(shape, np.uint8))
    with pytest.raises(BadData, match=r"2\.tif"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["s000", "s001", "s003", "s004"], "1 slices are missing.*s003.tif follows s001.tif"),
        (["9", "10", "14"], "3 slices are missing.*also 11, 12, 13"),
        (["a_v2_10", "a_v2_20", "a_v2_50"], "2 slices are missing.*steps of 10, also 30, 40"),
        (["1", "01", "2"], "same number"),
    ],
)
def test_a_gap_in_the_numbers_of_slices_is_refused_naming_what_is_missing(
    tmp_path: Path, names: list[str], what: str
) -> None:
    for name in names:
        tifffile.imwrite(tmp_path / f"{name}.tif", np.zeros((6, 8), np.uint8))
    with pytest.raises(BadData) as caught:
        open_source(tmp_path)
    assert re.search(what, caught.value.message().replace("\n", " "))


@pytest.mark.parametrize(
    "names",
    [
        ["5"],
        ["7", "30"],
        ["s2", "s4", "s6"],
        ["08", "09", "10"],
        ["0", "1"],
    ],
)
def test_slices_numbered_in_equal_steps_are_a_volume(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        tifffile.imwrite(tmp_path / f"{name}.tif", np.zeros((6, 8), np.uint8))
    with open_source(tmp_path) as volume:
        assert volume.shape_vox == (len(names), 6, 8)


@pytest.mark.parametrize("ndim", [1, 2, 6])
def test_arrays_that_are_no_volumes_are_refused(tmp_path: Path, ndim: int) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=np.zeros((2,) * ndim, np.uint8), zarr_format=2)
    with pytest.raises(BadData, match="axes"):
        open_source(tmp_path / "a.zarr")


def test_time_series_is_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=np.zeros((2, 1, 3, 3, 3), np.uint8), zarr_format=2)
    with pytest.raises(BadData, match="time series"):
        open_source(tmp_path / "a.zarr")


def test_empty_volume_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.zeros((0, 3, 3), np.uint8)
    with pytest.raises(BadData, match="empty"):
        open_source(tmp_path / "a.h5", "raw")


@pytest.mark.parametrize("damage", ["cut", "emptied"])
def test_damaged_chunk_names_the_place(container: Path, damage: str) -> None:
    chunk = container / DATASET / "1.1.1"
    chunk.write_bytes(chunk.read_bytes()[:5] if damage == "cut" else b"")
    with open_source(container, DATASET) as volume:
        np.testing.assert_array_equal(volume.read(Box((0, 0, 0), (2, 3, 4))), DATA[:2, :3, :4] + 1)
        with pytest.raises(BadData, match="re-copy") as caught:
            volume.read(Box((2, 3, 4), (2, 3, 4)))
    assert "(2, 3, 4)" in caught.value.where


def test_truncated_hdf5_is_bad_data(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.random.default_rng(0).integers(0, 255, (20, 20, 20), np.uint8)
    content = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadData, match="re-copy"):
        open_source(tmp_path / "a.h5", "raw")


def test_metadata_that_is_no_json_is_bad_data(container: Path) -> None:
    (container / DATASET / ".zattrs").write_text("{resolution: ")
    with pytest.raises(BadData, match="JSON"):
        open_source(container, DATASET)


def test_missing_chunks_are_distinguished_from_zeros(container: Path) -> None:
    (container / DATASET / "0.1.0").unlink()
    with open_source(container, DATASET) as volume:
        assert volume.missing_chunks(volume.box) == [(0, 1, 0)]
        assert volume.missing_chunks(Box((2, 0, 0), (2, 6, 8))) == []


def test_missing_hdf5_chunks_are_found(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        node = file.create_dataset("raw", (4, 6, 8), "u1", chunks=(2, 3, 4))
        node[:2] = 1
    with open_source(tmp_path / "a.h5", "raw") as volume:
        assert len(volume.missing_chunks(volume.box) or []) == 4


def test_box_outside_the_volume_is_refused(container: Path) -> None:
    with open_source(container, DATASET) as volume, pytest.raises(BadData, match="outside"):
        volume.read(Box((0, 0, 0), (5, 6, 8)))


def test_json_roi_of_a_json_roi_is_refused(tmp_path: Path) -> None:
    content = {"container": "a.json", "offset": [0, 0, 0], "size": [8, 8, 8]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(BadData, match="another JSON"):
        open_source(tmp_path / "a.json")


def _open_zarr_of_empty_chunks(folder: Path) -> None:
    zarr.create_array(folder / "a.zarr", shape=DATA.shape, dtype="u1", chunks=(2, 3, 4), zarr_format=2)
    path = folder / "a.zarr" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chunks": [0, 3, 4]}))
    open_source(folder / "a.zarr").read(Box((0, 0, 0), (4, 6, 8)))


def _open_n5_of_empty_blocks(folder: Path) -> None:
    (folder / "a.n5").mkdir()
    metadata = {"n5": "2.0.0", "dimensions": [8, 6, 4], "blockSize": [0, 3, 2], "dataType": "uint8"}
    (folder / "a.n5" / "attributes.json").write_text(json.dumps({**metadata, "compression": {"type": "raw"}}))
    open_source(folder / "a.n5")


def _open_hdf5_of_a_link_to_itself(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = h5py.SoftLink("/raw")
    open_source(folder / "a.h5", "raw")


def _open_hdf5_of_a_link_to_nothing(folder: Path) -> None:
    with h5py.File(folder / "a.b.h5", "w") as file:
        file["other"] = DATA
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = h5py.ExternalLink("a.b.h5", "raw")
    with pytest.raises(MissingInput, match="to which a link leads") as caught:
        open_source(folder / "a.h5", "raw")
    raise BadData("", where=caught.value.where)


def _open_zarr_of_too_many_voxels(folder: Path) -> None:
    array = zarr.create_array(folder / "a.zarr", shape=DATA.shape, dtype="u1", zarr_format=2)
    stored = json.loads((folder / "a.zarr" / ".zarray").read_text())
    (folder / "a.zarr" / ".zarray").write_text(json.dumps({**stored, "shape": [10**30, *array.shape[1:]]}))
    open_source(folder / "a.zarr")


@pytest.mark.parametrize(
    "open_it",
    [
        _open_zarr_of_empty_chunks,
        _open_n5_of_empty_blocks,
        _open_hdf5_of_a_link_to_itself,
        _open_hdf5_of_a_link_to_nothing,
        _open_zarr_of_too_many_voxels,
    ],
)
def test_metadata_that_cannot_be_true_are_bad_data_with_the_place(open_it: Opener, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        open_it(tmp_path)
    assert str(tmp_path / "a.") in caught.value.where


def test_a_stated_voxel_size_of_0_is_no_obstacle_if_the_user_gives_one(container: Path) -> None:
    (container / DATASET / ".zattrs").write_text('{"resolution": [0, 0, 0], "offset": [8, 0, 0]}')
    with open_source(container, DATASET) as volume:
        assert volume.geometry(voxel_size_nm=(4.0, 4.0, 4.0)).offset_nm == (8.0, 0.0, 0.0)


@pytest.mark.parametrize("size_nm", [1e308, 1e-300])
def test_a_voxel_size_that_no_microscope_has_is_refused(container: Path, size_nm: float) -> None:
    zarr.open_array(container / DATASET).attrs["resolution"] = [size_nm, 8.0, 8.0]
    with pytest.raises(BadData, match="no microscope has this voxel size"):
        open_source(container, None, DATASET).geometry()


@pytest.mark.parametrize("size", [[0, 8, 8], [8, 8], "8"])
def test_json_roi_without_voxels_is_refused(container: Path, size: object) -> None:
    path = container.with_name("a.json")
    path.write_text(json.dumps({"container": "a.zarr", "offset": [0, 0, 0], "size": size}))
    with pytest.raises(BadData):
        open_source(path, DATASET)


@pytest.mark.parametrize(
    ("raised", "wanted"),
    [
        (PermissionError(13, "denied"), PermissionDenied),
        (ValueError("PERMISSION_DENIED: error opening file"), PermissionDenied),
        (FileNotFoundError(2, "gone"), MissingInput),
        (OSError(5, "I/O error"), StorageFailure),
        (OSError(errno.ETIMEDOUT, "timed out"), StorageFailure),
        (OSError("file signature not found"), BadData),
        (RuntimeError("error during blosc decompression"), BadData),
    ],
)
def test_errors_of_the_libraries_become_those_of_lsdflow(raised: Exception, wanted: type[StageError]) -> None:
    with pytest.raises(wanted, match=r"a\.zarr"), reading("a.zarr"):
        raise raised
