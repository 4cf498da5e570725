"""One file of a volume is lost, cut, emptied or replaced: the volume is refused by name, or its voxels are the same.

The volume is read as prepare reads it: opened, its chunks looked for, every voxel read. A format is one line of
FORMATS, a damage one line of DAMAGES; every file of the format is damaged in turn.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorstore
import tifffile
import zarr
import zarr.codecs
from numcodecs import BZ2, LZ4, LZMA, Blosc, GZip, Zlib, Zstd

from lsdflow_contract.errors import StageError
from lsdflow_prepare.survey import refuse_missing_chunks
from lsdflow_runtime.formats.detect import open_source

SHAPE = (4, 6, 8)
RAW = np.random.default_rng(0).integers(1, 255, SHAPE, np.uint8)
DATASET = "volumes/raw"
METADATA = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json", "attributes.json", "info")
Writer = Callable[[Path], Path]


def zarr_volume(zarr_format: Any, **form: Any) -> Writer:
    """A zarr container with groups."""

    def write(folder: Path) -> Path:
        form.setdefault("chunks", (3, 4, 5))
        path = folder / "a.zarr"
        attributes = {"resolution": [8, 8, 8]}
        zarr.create_array(path / DATASET, data=RAW, zarr_format=zarr_format, attributes=attributes, **form)
        zarr.open_group(path, mode="a", zarr_format=zarr_format)
        return path

    return write


def sharded_zarr(**form: Any) -> Writer:
    """A zarr 3 container of shards."""
    return zarr_volume(3, shards=(3, 4, 10), **form)


def n5_volume(compression: str) -> Writer:
    """An N5 container."""

    def write(folder: Path) -> Path:
        metadata: dict[str, Any] = {"dimensions": SHAPE[::-1], "blockSize": [5, 4, 3], "dataType": "uint8"}
        spec: dict[str, Any] = {"driver": "n5", "kvstore": f"file://{folder}/a.n5/{DATASET}/", "create": True}
        blosc = {"cname": "lz4", "clevel": 5, "shuffle": 1} if compression == "blosc" else {}
        metadata["compression"] = {"type": compression, **blosc}
        store = tensorstore.open({**spec, "metadata": metadata}).result()
        store.write(RAW.T).result()
        (folder / "a.n5" / "attributes.json").write_text('{"n5": "2.0.0"}')
        return folder / "a.n5"

    return write


def precomputed_volume(packed: bool = False, **scale: Any) -> Writer:
    """A precomputed volume; packed: its chunk files end in .gz, as those of cloud-volume."""

    def write(folder: Path) -> Path:
        path = folder / "a.precomputed"
        labels = scale.get("encoding") == "compressed_segmentation"
        kind = {"type": "segmentation" if labels else "image", "data_type": "uint32" if labels else "uint8"}
        size = {"size": SHAPE[::-1], "resolution": [8, 8, 8], "voxel_offset": [10, 20, 30], "chunk_size": [5, 4, 3]}
        block = {"compressed_segmentation_block_size": [2, 2, 2]} if labels else {}
        store = tensorstore.open(
            {
                "driver": "neuroglancer_precomputed",
                "kvstore": f"file://{path}/",
                "multiscale_metadata": {**kind, "num_channels": 1},
                "scale_metadata": {"key": "8_8_8", "encoding": "raw", **size, **block, **scale},
                "create": True,
            }
        ).result()
        store[..., 0].write(RAW.T.astype(kind["data_type"])).result()
        for file in (path / "8_8_8").iterdir() if packed else ():
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
        return path

    return write


def shards(hashed: str, encoding: str) -> dict[str, Any]:
    """Sharded storage of a precomputed scale."""
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": 1,
        "minishard_bits": 1,
        "shard_bits": 3,
        "hash": hashed,
        "minishard_index_encoding": encoding,
        "data_encoding": encoding,
    }


def hdf5_volume(**form: Any) -> Writer:
    """An HDF5 file."""

    def write(folder: Path) -> Path:
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset(DATASET, data=RAW, **form).attrs["resolution"] = (8, 8, 8)
        return folder / "a.h5"

    return write


def external_hdf5(folder: Path) -> Path:
    """An HDF5 file with the voxels in two other files."""
    half = RAW.size // 2
    RAW.ravel()[:half].tofile(folder / "one.bin")
    RAW.ravel()[half:].tofile(folder / "two.bin")
    with h5py.File(folder / "a.h5", "w") as file:
        external = [("one.bin", 0, half), ("two.bin", 0, RAW.size - half)]
        file.create_dataset(DATASET, SHAPE, "u1", external=external)
    return folder / "a.h5"


def virtual_hdf5(folder: Path) -> Path:
    """An HDF5 file whose planes are in files of their own."""
    layout = h5py.VirtualLayout(SHAPE, "u1")
    for z, plane in enumerate(RAW):
        with h5py.File(folder / f"plane{z}.h5", "w") as file:
            file["plane"] = plane
        layout[z] = h5py.VirtualSource(f"plane{z}.h5", "plane", plane.shape)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_virtual_dataset(DATASET, layout)
    return folder / "a.h5"


def tiff_file(**form: Any) -> Writer:
    """One TIFF file."""

    def write(folder: Path) -> Path:
        name = "a.ome.tif" if form.get("ome") else "a.tif"
        tifffile.imwrite(folder / name, RAW, **form)
        return folder / name

    return write


def tiff_folder(**form: Any) -> Writer:
    """A folder with a TIFF of each section."""

    def write(folder: Path) -> Path:
        (folder / "stack").mkdir()
        for z, plane in enumerate(RAW):
            tifffile.imwrite(folder / "stack" / f"s_{z:03}.tif", plane, **form)
        return folder / "stack"

    return write


def ome_tiff_files(folder: Path) -> Path:
    """An OME-TIFF of one file for each section, the first of which names the others."""
    data = "".join(
        f'<TiffData FirstZ="{z}" IFD="0" PlaneCount="1"><UUID FileName="s{z}.ome.tif">urn:uuid:'
        f"00000000-0000-0000-0000-00000000000{z}</UUID></TiffData>"
        for z in range(SHAPE[0])
    )
    z, y, x = SHAPE
    pixels = f'SizeX="{x}" SizeY="{y}" SizeZ="{z}" SizeC="1" SizeT="1" DimensionOrder="XYZCT" Type="uint8"'
    for number, plane in enumerate(RAW):
        xml = (
            '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="urn:uuid:00000000-0000-0000-0000-00000000000{number}"><Image ID="Image:0">'
            f'<Pixels ID="Pixels:0" {pixels}><Channel ID="Channel:0:0" SamplesPerPixel="1"/>{data}</Pixels>'
            "</Image></OME>"
        )
        tifffile.imwrite(folder / f"s{number}.ome.tif", plane, description=xml, metadata=None)
    return folder / "s0.ome.tif"


FORMATS: dict[str, Writer] = {
    "zarr 2": zarr_volume(2),
    **{f"zarr 2 {c.codec_id}": zarr_volume(2, compressors=[c]) for c in (Blosc(), GZip(), Zlib(), LZ4(), BZ2())},
    "zarr 2 lzma": zarr_volume(2, compressors=[LZMA()]),
    "zarr 2 zstd": zarr_volume(2, compressors=[Zstd(checksum=True)]),
    "zarr 2 raw": zarr_volume(2, compressors=None),
    "zarr 2 nested": zarr_volume(2, chunk_key_encoding={"name": "v2", "separator": "/"}),
    "zarr 3": zarr_volume(3),
    "zarr 3 raw": zarr_volume(3, compressors=None),
    "zarr 3 gzip": zarr_volume(3, compressors=[zarr.codecs.GzipCodec()]),
    "zarr 3 blosc": zarr_volume(3, compressors=[zarr.codecs.BloscCodec()]),
    "zarr 3 keys of 2": zarr_volume(3, chunk_key_encoding={"name": "v2", "separator": "."}),
    "zarr 3 flat keys": zarr_volume(3, chunk_key_encoding={"name": "default", "separator": "."}),
    "zarr 3 sharded": sharded_zarr(),
    "zarr 3 sharded raw": sharded_zarr(compressors=None),
    "zarr 3 sharded blosc": sharded_zarr(compressors=[zarr.codecs.BloscCodec()]),
    "zarr 3 sharded gzip": sharded_zarr(compressors=[zarr.codecs.GzipCodec()]),
    **{f"n5 {c}": n5_volume(c) for c in ("raw", "gzip", "blosc", "zstd", "xz", "bzip2")},
    "precomputed raw": precomputed_volume(),
    "precomputed gz": precomputed_volume(packed=True),
    "precomputed jpeg": precomputed_volume(encoding="jpeg"),
    "precomputed png": precomputed_volume(encoding="png"),
    "precomputed labels": precomputed_volume(encoding="compressed_segmentation"),
    "precomputed sharded raw": precomputed_volume(sharding=shards("identity", "raw")),
    "precomputed sharded": precomputed_volume(sharding=shards("identity", "gzip")),
    "precomputed sharded hashed": precomputed_volume(sharding=shards("murmurhash3_x86_128", "gzip")),
    "hdf5 raw": hdf5_volume(),
    "hdf5 gzip": hdf5_volume(chunks=(3, 4, 5), compression="gzip", fletcher32=True),
    "hdf5 virtual": virtual_hdf5,
    "ome-tiff files": ome_tiff_files,
    "tiff folder": tiff_folder(),
    "tiff folder zlib": tiff_folder(compression="zlib"),
    "tiff": tiff_file(photometric="minisblack"),
    "tiff zlib": tiff_file(photometric="minisblack", compression="zlib"),
    "ome-tiff": tiff_file(ome=True, photometric="minisblack", metadata={"axes": "ZYX"}),
}

# What no file shows: zeros in place of voxels that are stored without compression or checksum, and the loss of the
# first or last section of a folder, which is then a smaller volume. The values match the names of these files.
WITHOUT_CHECKSUM = ("zarr 2 raw", "zarr 3 raw", "precomputed raw", "precomputed labels")
INVISIBLE = {
    **{(form, "replaced by zeros"): r"\d" for form in WITHOUT_CHECKSUM},
    **{(f"tiff folder{codec}", "lost"): f"s_00[0{SHAPE[0] - 1}].tif" for codec in ("", " zlib")},
}

# Planes are counted, so a lost or unreadable one is refused with the name of the file or folder that they belong to.
COUNTED = ("ome-tiff files", "tiff folder", "tiff folder zlib")

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "lost": lambda _: None,
    "emptied": lambda _: b"",
    "cut after ten bytes": lambda content: content[:10],
    "cut in the middle": lambda content: content[: len(content) // 2],
    "cut before the end": lambda content: content[:-3],
    "twice": lambda content: content + content,
    "replaced by a page of a server": lambda _: b"<html><body>404 Not Found</body></html>\n" * 20,
    "replaced by zeros": lambda content: bytes(len(content)),
    "replaced by a folder": lambda _: None,
}


def taken(path: Path) -> np.ndarray:
    """All voxels of a volume, as prepare takes them."""
    with open_source(path, None, DATASET) as source:
        refuse_missing_chunks(source, source.box, sparse=False)
        return source.read(source.box)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_file_is_refused_by_name_or_changes_no_voxel(tmp_path: Path, form: str, damage: str) -> None:
    path = FORMATS[form](tmp_path)
    whole = taken(path)
    assert whole.shape == SHAPE
    invisible = re.compile(INVISIBLE.get((form, damage), "nothing"))
    files = sorted(file for file in tmp_path.rglob("*") if file.is_file() and not invisible.search(file.name))
    assert files
    wrong = []
    for file in files:
        content = file.read_bytes()
        spoil(file, damage)
        wrong += problems(path, file, whole, by_volume=form in COUNTED)
        restore(file, content)
    assert not wrong, wrong


def spoil(file: Path, damage: str) -> None:
    changed = DAMAGES[damage](file.read_bytes())
    if changed is not None:
        file.write_bytes(changed)
        return
    file.unlink()
    if "folder" in damage:
        file.mkdir()


def restore(file: Path, content: bytes) -> None:
    if file.is_dir():
        file.rmdir()
    file.write_bytes(content)


def problems(path: Path, file: Path, whole: np.ndarray, *, by_volume: bool) -> list[str]:
    """What is wrong with reading a volume of which `file` is damaged; empty if nothing."""
    try:
        found = taken(path)
    except StageError as error:
        text = error.message()
        # Metadata may be named by their folder or dataset, a lost chunk by its plain name.
        names = [str(file.parent), DATASET] if file.name in METADATA else [str(file).removesuffix(".gz")]
        names += [str(path)] * by_volume
        return [] if any(name in text for name in names) else [f"{file} is not named: {text}"]
    if found.shape == whole.shape and np.array_equal(found, whole):
        return []
    return [f"{file}: other voxels, {np.mean(found == 0):.0%} zeros"]
