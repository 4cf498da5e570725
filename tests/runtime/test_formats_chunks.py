"""Chunks under other names, packed, too small, of codecs that are not installed: read, or refused with the reason."""

from __future__ import annotations

import bz2
import json
import lzma
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import tensorstore
import zarr
from numcodecs import Zstd

from lsdflow_contract.errors import BadData
from lsdflow_prepare.survey import refuse_missing_chunks
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.formats.precomputed import chunk_id

SHAPE = (6, 10, 14)
RAW = np.random.default_rng(0).integers(1, 255, SHAPE, np.uint8)
CHUNKS = (3, 4, 5)
Change = Callable[[Path], None]


def zarr_array(path: Path, zarr_format: Any = 2, **form: Any) -> Path:
    zarr.create_array(path, data=RAW, chunks=CHUNKS, zarr_format=zarr_format, **form)
    return path


def n5_array(path: Path) -> Path:
    metadata = {"dimensions": SHAPE[::-1], "blockSize": CHUNKS[::-1], "dataType": "uint8"}
    spec = {"driver": "n5", "kvstore": f"file://{path}/", "create": True}
    compression = {"compression": {"type": "raw"}}
    tensorstore.open({**spec, "metadata": metadata | compression}).result().write(RAW.T).result()
    return path


def precomputed(path: Path, **scale: Any) -> Path:
    size = {"size": SHAPE[::-1], "resolution": [8, 8, 8], "voxel_offset": [-3, 0, 7], "chunk_size": CHUNKS[::-1]}
    store = tensorstore.open(
        {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{path}/"},
            "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
            "scale_metadata": {"key": "8_8_8", "encoding": "raw", **size, **scale},
            "create": True,
        }
    ).result()
    store[..., 0].write(RAW.T).result()
    return path


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def flatten(folder: Path) -> None:
    """Rename 0/1/2 to 0.1.2."""
    for file in [file for file in folder.rglob("*") if file.is_file() and file.parent != folder]:
        file.rename(folder / file.relative_to(folder).as_posix().replace("/", "."))
    for inner in [inner for inner in folder.iterdir() if inner.is_dir()]:
        shutil.rmtree(inner)


def _nested(path: Path) -> None:
    zarr_array(path, chunk_key_encoding={"name": "v2", "separator": "/"})
    edit(path / ".zarray", dimension_separator=None)


def _flat(path: Path) -> None:
    zarr_array(path)
    edit(path / ".zarray", dimension_separator="/")


def _keys_of_2_in_3(path: Path) -> None:
    zarr_array(path, 3)
    edit(path / "zarr.json", chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}})


def _other_separator_in_3(path: Path) -> None:
    zarr_array(path, 3)
    edit(path / "zarr.json", chunk_key_encoding={"name": "default", "configuration": {"separator": "."}})


def _flat_n5(path: Path) -> None:
    flatten(n5_array(path))


def _packed_with_an_unknown_ending(path: Path) -> None:
    for file in list((precomputed(path) / "8_8_8").iterdir()):
        file.rename(f"{file}.lz4")


def _shards_without_sharding(path: Path) -> None:
    for file in list((precomputed(path) / "8_8_8").iterdir()):
        file.unlink()
    (path / "8_8_8" / "0.shard").write_bytes(b"1234")


def _info(path: Path, **scale: Any) -> None:
    """Change the metadata of the scale of a precomputed volume."""
    info = json.loads((path / "info").read_text())
    info["scales"][0] |= scale
    (path / "info").write_text(json.dumps(info))


def _another_corner(path: Path) -> None:
    _info(precomputed(path), voxel_offset=[0, 0, 0])


def _smaller_chunks(path: Path) -> None:
    _info(precomputed(path), chunk_sizes=[[4, 3, 2]])


def _shards(path: Path) -> Path:
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0}
    return precomputed(path, sharding={**sharding, "minishard_bits": 1, "shard_bits": 0})


def _shard_of_another_name(path: Path) -> None:
    (_shards(path) / "8_8_8" / "0.shard").rename(path / "8_8_8" / "00.shard")


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (_nested, "dimension_separator"),
        (_flat, "dimension_separator"),
        (_keys_of_2_in_3, "chunk_key_encoding"),
        (_other_separator_in_3, "chunk_key_encoding"),
        (_flat_n5, "N5 format"),
        (_packed_with_an_unknown_ending, "info"),
        (_shards_without_sharding, "info"),
        (_another_corner, "info"),
        (_smaller_chunks, "info"),
        (_shard_of_another_name, "info"),
    ],
)
def test_data_files_of_which_none_is_a_chunk_are_never_called_sparse(
    tmp_path: Path, make: Change, setting: str
) -> None:
    make(tmp_path / "a")
    with pytest.raises(BadData, match="no data file") as caught:
        open_source(tmp_path / "a")
    assert setting in caught.value.wanted
    assert setting in caught.value.fix
    assert "sparse" not in caught.value.message()


@pytest.mark.parametrize("left", [".DS_Store", "0.0.0.partial"])
def test_one_chunk_among_other_files_is_enough(tmp_path: Path, left: str) -> None:
    folder = zarr_array(tmp_path / "a")
    (folder / left).write_bytes(b"1")
    with open_source(folder) as source:
        np.testing.assert_array_equal(source.read(source.box), RAW)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_of_a_sparse_volume_are_read_as_the_fill_value(tmp_path: Path, zarr_format: int) -> None:
    folder = zarr_array(tmp_path / "a", zarr_format, fill_value=7)
    (folder / ("0.1.0" if zarr_format == 2 else "c/0/1/0")).unlink()
    with open_source(folder) as source:
        assert refuse_missing_chunks(source, source.box, sparse=True) == 1
        assert source.grid is not None
        assert source.grid.fill_value == 7
        assert (source.read(source.box)[:3, 4:8, :5] == 7).all()
        with pytest.raises(BadData, match="never written"):
            refuse_missing_chunks(source, source.box, sparse=False)


def _one_nested(path: Path) -> None:
    zarr_array(path)
    (path / "0" / "1").mkdir(parents=True)
    (path / "0.1.0").rename(path / "0" / "1" / "0")


def _one_of_an_unknown_ending(path: Path) -> None:
    file = sorted((precomputed(path) / "8_8_8").iterdir())[0]
    file.rename(f"{file}.lz4")


def _x_and_z_exchanged(path: Path) -> None:
    edit(n5_array(path) / "attributes.json", dimensions=SHAPE)


@pytest.mark.parametrize(
    ("make", "name"),
    [(_one_nested, "0/1/0"), (_one_of_an_unknown_ending, ".lz4"), (_x_and_z_exchanged, "2/"), (_shards, None)],
)
def test_files_that_are_no_chunks_are_named_where_chunks_are_missing(
    tmp_path: Path, make: Change, name: str | None
) -> None:
    """Advice to read the missing ones as zeros would give zeros in place of voxels that are there."""
    make(tmp_path / "a")
    with open_source(tmp_path / "a") as source:
        found = source.other_file()
        assert found == name or (found is not None and str(name) in found)
        if name is not None:
            assert refuse_missing_chunks(source, source.box, sparse=True) > 0
            with pytest.raises(BadData, match=r"is there, but no chunk") as caught:
                refuse_missing_chunks(source, source.box, sparse=False)
            assert "sparse" not in caught.value.message()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_volume_without_any_chunk_is_never_sparse(tmp_path: Path, sparse: bool) -> None:
    folder = _shards(tmp_path / "a")
    _info(folder, sharding=json.loads((folder / "info").read_text())["scales"][0]["sharding"] | {"minishard_bits": 0})
    with open_source(folder) as source, pytest.raises(BadData, match="never written") as caught:
        refuse_missing_chunks(source, source.box, sparse=sparse)
    assert "sparse" not in caught.value.message()


@pytest.mark.parametrize("named", [False, True])
def test_chunks_whose_names_do_not_say_whether_they_are_gzip_are_read(tmp_path: Path, named: bool) -> None:
    """Some downloads unpack files and keep their names, others keep them packed under plain names."""
    folder = precomputed(tmp_path / "a")
    for file in list((folder / "8_8_8").iterdir()):
        if named:
            file.rename(f"{file}.gz")
        else:
            file.write_bytes(PACKINGS[".gz"](file.read_bytes()))
    with open_source(folder) as source:
        np.testing.assert_array_equal(source.read(source.box), RAW)


def test_the_finest_scale_is_read_whatever_the_order(tmp_path: Path) -> None:
    folder = precomputed(tmp_path / "a")
    info = json.loads((folder / "info").read_text())
    info["scales"].insert(0, info["scales"][0] | {"key": "16_16_16", "resolution": [16, 16, 16], "size": [7, 5, 3]})
    (folder / "info").write_text(json.dumps(info))
    with open_source(folder) as source:
        np.testing.assert_array_equal(source.read(source.box), RAW)
    with open_source(folder, "16_16_16") as source:
        assert source.shape_vox == (3, 5, 7)
    image = zarr.open_group(tmp_path / "b.zarr", zarr_format=2)
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    for path, size, data in (("1", 16.0, RAW[::2, ::2, ::2]), ("0", 8.0, RAW)):
        zarr.create_array(tmp_path / "b.zarr" / path, data=data, zarr_format=2)
        level = {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [size] * 3}]}
        levels = [*image.attrs.get("multiscales", [{"datasets": []}])[0]["datasets"], level]
        image.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": levels}]
    with open_source(tmp_path / "b.zarr") as source:
        np.testing.assert_array_equal(source.read(source.box), RAW)


def test_blocks_of_n5_of_varying_length_are_not_called_damaged(tmp_path: Path) -> None:
    file = n5_array(tmp_path / "a") / "0" / "0" / "0"
    file.write_bytes(b"\0\1" + file.read_bytes()[2:])
    with open_source(tmp_path / "a") as source, pytest.raises(BadData, match="varying length") as caught:
        source.read(source.box)
    assert "re-copy" not in caught.value.fix


def _packed(name: str) -> Callable[[bytes], bytes]:
    def pack(content: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(content)
        return bytes(sink.getvalue())

    return pack


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": _packed("gzip"),
    ".br": _packed("brotli"),
    ".zstd": _packed("zstd"),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("ending", PACKINGS)
def test_packed_chunks_of_precomputed_are_read_also_among_plain_ones(tmp_path: Path, ending: str, every: int) -> None:
    folder = precomputed(tmp_path / "a b%20c")
    for file in sorted((folder / "8_8_8").iterdir())[::every]:
        file.with_name(file.name + ending).write_bytes(PACKINGS[ending](file.read_bytes()))
        file.unlink()
    with open_source(folder) as source:
        assert source.missing_chunks(source.box) == []
        np.testing.assert_array_equal(source.read(source.box), RAW)


@pytest.mark.parametrize("ending", PACKINGS)
def test_a_packed_chunk_that_unpacks_to_far_more_is_refused_in_little_memory(tmp_path: Path, ending: str) -> None:
    folder = precomputed(tmp_path / "a")
    file = sorted((folder / "8_8_8").iterdir())[0]
    file.with_name(file.name + ending).write_bytes(PACKINGS[ending](bytes(50 * 2**20)))
    file.unlink()
    with open_source(folder) as source:
        tracemalloc.start()
        with pytest.raises(BadData, match=file.name):
            source.read(source.box)
        assert tracemalloc.get_traced_memory()[1] < 2**24
        tracemalloc.stop()


def test_the_number_of_a_chunk_is_its_compressed_morton_code() -> None:
    assert [chunk_id(index, [5, 1, 2]) for index in ((0, 0, 0), (1, 0, 0), (0, 0, 1), (2, 0, 0), (4, 0, 1))] == [
        0,
        1,
        2,
        4,
        10,
    ]


@pytest.mark.parametrize("hashed", ["identity", "murmurhash3_x86_128"])
@pytest.mark.parametrize("bits", [(0, 0, 0), (1, 2, 2), (9, 6, 11)])
def test_every_chunk_of_a_sharded_volume_is_found(tmp_path: Path, hashed: str, bits: tuple[int, int, int]) -> None:
    names = ("preshift_bits", "minishard_bits", "shard_bits")
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": hashed, **dict(zip(names, bits, strict=True))}
    sharding |= {"minishard_index_encoding": "gzip", "data_encoding": "gzip"}
    with open_source(precomputed(tmp_path / "a", sharding=sharding)) as source:
        assert source.missing_chunks(source.box) == []
        np.testing.assert_array_equal(source.read(source.box), RAW)
        assert source.grid is not None
        assert source.grid.file is not None
        shards = {source.grid.file((x, y, z, 0)) for x in range(3) for y in range(3) for z in range(2)}
    assert shards == {str(file) for file in (tmp_path / "a" / "8_8_8").iterdir()}


def test_a_sharded_volume_with_an_emptied_shard_is_refused_even_if_it_is_sparse(tmp_path: Path) -> None:
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0}
    folder = precomputed(tmp_path / "a", sharding={**sharding, "minishard_bits": 1, "shard_bits": 2})
    (folder / "8_8_8" / "1.shard").write_bytes(b"")
    with open_source(folder) as source, pytest.raises(BadData, match=r"1\.shard"):
        refuse_missing_chunks(source, source.box, sparse=True)


def _codec(name: str, **compression: Any) -> tuple[str, Change]:
    def make(path: Path) -> None:
        edit(n5_array(path) / "attributes.json", compression={"type": name, **compression})

    return name, make


def _encoding(name: str) -> tuple[str, Change]:
    def make(path: Path) -> None:
        info = json.loads((precomputed(path) / "info").read_text())
        info["scales"][0]["encoding"] = name
        (path / "info").write_text(json.dumps(info))

    return name, make


def _zarr_codec(name: str, zarr_format: int) -> tuple[str, Change]:
    def make(path: Path) -> None:
        zarr_array(path, zarr_format)
        if zarr_format == 2:
            edit(path / ".zarray", compressor={"id": name})
        else:
            edit(path / "zarr.json", codecs=[{"name": "bytes"}, {"name": name, "configuration": {}}])

    return name, make


@pytest.mark.parametrize(
    ("name", "make"),
    [
        _codec("lz4", blockSize=65536),
        _codec("jpeg"),
        *map(_encoding, ("crackle", "compresso", "fpzip", "zfpc", "kempressed", "jxl")),
        _zarr_codec("fpzip", 2),
        _zarr_codec("fpzip", 3),
    ],
)
def test_a_codec_that_is_not_installed_is_named_and_nothing_is_called_damaged(
    tmp_path: Path, name: str, make: Change
) -> None:
    make(tmp_path / "a")
    with pytest.raises(BadData, match="codec that is not installed") as caught:
        open_source(tmp_path / "a")
    assert name in caught.value.found
    assert "re-copy" not in caught.value.fix


def test_label_multisets_are_refused_with_their_own_sentence(tmp_path: Path) -> None:
    edit(n5_array(tmp_path / "a") / "attributes.json", isLabelMultiset=True)
    with pytest.raises(BadData, match="label multisets") as caught:
        open_source(tmp_path / "a")
    assert "to-scalar" in caught.value.fix


@pytest.mark.parametrize("shape_xyz", [(5, 4, 2), (1, 4, 3), (0, 0, 0)])
def test_an_n5_block_smaller_than_its_metadata_say_is_refused(tmp_path: Path, shape_xyz: tuple[int, ...]) -> None:
    folder = n5_array(tmp_path / "a")
    (folder / "1/1/1").write_bytes(struct.pack(">HHIII", 0, 3, *shape_xyz) + bytes(np.prod(shape_xyz)))
    with open_source(folder) as source, pytest.raises(BadData, match="fewer voxels") as caught:
        source.read(source.box)
    assert "1/1/1" in caught.value.where


def test_n5_blocks_of_the_edge_may_be_whole_or_cropped(tmp_path: Path) -> None:
    folder = n5_array(tmp_path / "a")
    edge = RAW.T[10:, 8:, 3:]
    (folder / "2/2/1").write_bytes(struct.pack(">HHIII", 0, 3, *edge.shape) + edge.tobytes("F"))
    with open_source(folder) as source:
        np.testing.assert_array_equal(source.read(source.box), RAW)


@pytest.mark.parametrize("between", [b"", b"\x50\x2a\x4d\x18\x03\0\0\0abc"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zstd_chunk_of_many_frames_is_refused_before_it_is_unpacked(
    tmp_path: Path, zarr_format: int, between: bytes
) -> None:
    codec = Zstd() if zarr_format == 2 else zarr.codecs.ZstdCodec()
    folder = zarr_array(tmp_path / "a", zarr_format, compressors=[codec])
    frame = Zstd().encode(bytes(100))
    (folder / ("0.0.0" if zarr_format == 2 else "c/0/0/0")).write_bytes((frame + between) * 2**15)
    with open_source(folder) as source, pytest.raises(BadData, match="unpacks to"):
        source.read(source.box)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("a.mrc", "mrc2tif"),
        ("a.npy", "zarr.save"),
        ("a.CZI", "bioformats2raw"),
        ("a.nrrd", "Fiji"),
        ("a.raw", "Import > Raw"),
        ("a.unknown", "bioformats2raw"),
        ("stack/s_001.png", "ImageMagick"),
    ],
)
def test_a_file_of_an_unknown_format_is_refused_with_what_converts_it(tmp_path: Path, name: str, program: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"12345678")
    with pytest.raises(BadData, match="no volume format") as caught:
        open_source(path if path.parent == tmp_path else path.parent)
    assert "convert it with" in caught.value.fix
    assert program in caught.value.fix
    assert " to " in caught.value.fix
    assert "container itself" not in caught.value.fix


def test_a_folder_of_folders_is_told_to_name_the_container(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(BadData, match="name the container itself"):
        open_source(tmp_path)


def test_chunks_of_hdf5_that_do_not_exist_are_reported_with_the_fill_value_that_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", (8, 8, 8), np.uint8, chunks=(4, 4, 4), fillvalue=7)[:4] = 1
    with open_source(tmp_path / "a.h5", "raw") as source:
        assert source.grid is not None
        assert source.grid.fill_value == 7
        assert len(source.missing_chunks(source.box) or ()) == 4
        assert set(np.unique(source.read(source.box))) == {1, 7}
