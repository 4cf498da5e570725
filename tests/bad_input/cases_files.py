"""Volumes in files of other programs: a part that is lost, more than one volume, or a form that is not read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import tensorstore
import tifffile
import zarr
from bad_input.case import Case, Spoil
from bad_input.cases_volumes import LABELS
from bad_input.lab import TARGET_VOX, TRAIN_VOX, Lab, edit_json, labels_of, write_source
from numpy.typing import NDArray

from lsdflow_contract.testing import membrane_raw

DATA, MISSING = 65, 66
PLANES = membrane_raw(labels_of(TRAIN_VOX))[:6]
NAME = "precomputed"
SHARDS = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 1,
}
OME = (
    '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:0">'
    '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint8" SizeX="40" SizeY="40" SizeZ="6" '
    'SizeC="1" SizeT="1"><Channel ID="Channel:0:0" SamplesPerPixel="1"/>{data}</Pixels></Image></OME>'
)


def _file(name: str, write: Callable[[Path], object], dataset: str | None = None) -> Spoil:
    """raw of the training volume is this file or folder, made by `write`."""

    def spoil(lab: Lab) -> None:
        write(lab.root / "input" / name)
        lab.set_training(raw=f"../input/{name}", raw_dataset=dataset, labels="../input/train.zarr")

    return spoil


# TIFF


def _pages(planes: Sequence[NDArray[Any]], **options: Any) -> Callable[[Path], object]:
    """A TIFF of these pages, without metadata."""

    def write(path: Path) -> None:
        with tifffile.TiffWriter(path) as tiff:
            for plane in planes:
                tiff.write(plane, **{"metadata": None, "contiguous": False, **options})

    return write


def _two_series(path: Path) -> None:
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(PLANES)
        tiff.write(PLANES.astype(np.uint16))


def _hyperstack(path: Path) -> None:
    tifffile.imwrite(path, PLANES, imagej=True, metadata={"axes": "CYX"})


def _slices(*names: str) -> Callable[[Path], object]:
    """A folder of slices with these names."""

    def write(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            tifffile.imwrite(folder / f"{name}.tif", PLANES[0])

    return write


def _narrow_slice(folder: Path) -> None:
    _slices("s_0", "s_1", "s_2")(folder)
    tifffile.imwrite(folder / "s_2.tif", PLANES[0, :, :30])


def _ome(planes: int, file: str = "") -> Callable[[Path], object]:
    """An OME-TIFF of so many planes, whose XML names six; those from the fourth on in `file`."""
    data = [f'<TiffData IFD="{z}" FirstZ="{z}" PlaneCount="1">{file * (z > 2)}</TiffData>' for z in range(6)]

    def write(path: Path) -> None:
        with tifffile.TiffWriter(path) as tiff:
            for number, plane in enumerate(PLANES[:planes]):
                description = None if number else OME.format(data="".join(data))
                tiff.write(plane, metadata=None, contiguous=False, description=description)

    return write


OTHER_FILE = '<UUID FileName="second.ome.tif">urn:uuid:1</UUID>'
COLOURS = np.random.default_rng(1).integers(0, 2**16, (3, 256), np.uint16)

# Chunks


def _precomputed(change: Callable[[list[Path]], object], **scale: Any) -> Spoil:
    """A precomputed volume, its chunk or shard files changed."""

    def write(folder: Path) -> None:
        raw = membrane_raw(labels_of(TRAIN_VOX))
        size = {"size": TRAIN_VOX[::-1], "resolution": [8, 8, 10], "chunk_size": [16, 16, 16]}
        store = tensorstore.open(
            {
                "driver": "neuroglancer_precomputed",
                "kvstore": f"file://{folder}/",
                "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
                "scale_metadata": {"key": "8_8_10", "encoding": "raw", **size, **scale},
                "create": True,
            }
        ).result()
        store[..., 0].write(raw.T).result()
        change(sorted((folder / "8_8_10").iterdir()))

    return _file(NAME, write)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _packed_and_cut(files: list[Path]) -> None:
    packed = files[0].with_name(files[0].name + ".gz")
    packed.write_bytes(gzip.compress(files[0].read_bytes())[:100])
    files[0].unlink()


def _renamed(lab: Lab) -> None:
    chunk = lab.source("train", "volumes/raw") / "1.0.1"
    (chunk.parent / "1" / "0").mkdir(parents=True)
    chunk.rename(chunk.parent / "1" / "0" / "1")


def _without_chunks(lab: Lab) -> None:
    for chunk in lab.source("train", "volumes/raw").glob("[0-9]*"):
        chunk.unlink()
    lab.set_training(sparse=True)


def _n5(**changes: Any) -> Spoil:
    """An N5 dataset whose metadata say something else."""

    def write(folder: Path) -> None:
        metadata = {"dimensions": TRAIN_VOX[::-1], "blockSize": [16, 16, 16], "dataType": "uint8"}
        spec = {"driver": "n5", "kvstore": f"file://{folder}/", "create": True}
        metadata["compression"] = {"type": "gzip"}
        store = tensorstore.open({**spec, "metadata": metadata}).result()
        store.write(membrane_raw(labels_of(TRAIN_VOX)).T).result()
        edit_json(folder / "attributes.json", resolution=[8, 8, 10], **changes)

    return _file("raw.n5", write)


# HDF5


def _hdf5(**attributes: Any) -> Callable[[Path], object]:
    """An HDF5 file with one dataset, whose dimension labels, or attributes, are given."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            node = file.create_dataset("channel/data", data=membrane_raw(labels_of(TRAIN_VOX)))
            for label, dimension in zip(attributes.get("labels", ()), node.dims, strict=False):
                dimension.label = label
            for name, value in attributes.items():
                if name != "labels":
                    node.parent.attrs[name] = node.attrs[name] = value

    return write


def _virtual(path: Path) -> None:
    layout = h5py.VirtualLayout(TRAIN_VOX, "u1")
    layout[:] = h5py.VirtualSource("lost.h5", "raw", TRAIN_VOX)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("channel/data", layout)


def _of_a_killed_writer(path: Path) -> None:
    _hdf5()(path)
    with h5py.File(path, "w", libver="latest") as file:
        file["channel/data"] = membrane_raw(labels_of(TRAIN_VOX))
    content = bytearray(path.read_bytes())
    with h5py.File(path, "r+", libver="latest"):
        left = path.read_bytes()[:48]  # the superblock says that a program writes
    path.write_bytes(left + bytes(content[48:]))


def _filter_that_nobody_has(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("channel/data", data=membrane_raw(labels_of(TRAIN_VOX)), **hdf5plugin.Blosc())
    blosc, unknown = (code.to_bytes(2, "little") for code in (hdf5plugin.BLOSC_ID, 32_700))
    path.write_bytes(path.read_bytes().replace(blosc, unknown))


# Axes and labels


def _named(**names: Any) -> Callable[[Path], object]:
    """A zarr 3 array with these names of its axes."""

    def write(folder: Path) -> None:
        raw, form = membrane_raw(labels_of(TRAIN_VOX)), {"chunks": (16, 16, 16), "zarr_format": 3}
        zarr.create_array(folder, data=raw, attributes={"resolution": [10, 8, 8]}, **form, **names)

    return write


def _channel_last(folder: Path) -> None:
    raw = membrane_raw(labels_of(TRAIN_VOX))
    write_source(folder, np.stack([raw, raw], -1))


def _webknossos(folder: Path) -> None:
    _named(dimension_names=["z", "y", "x"])(folder / "color" / "1")
    mags = [{"mag": [1, 1, 1], "axisOrder": {"x": 0, "y": 1, "z": 2}}]
    layers = {"dataLayers": [{"name": "color", "mags": mags}]}
    (folder / "datasource-properties.json").write_text(json.dumps(layers))


def _container(name: str, dataset: str, values: NDArray[Any]) -> Spoil:
    """An array of a source volume, with all its chunks, also those of zeros."""

    def spoil(lab: Lab) -> None:
        with zarr.config.set({"array.write_empty_chunks": True}):
            write_source(lab.source(name, dataset), values)

    return spoil


ZEROS = np.zeros(TARGET_VOX, np.uint8)

CASES = [
    # TIFF
    Case("a TIFF with two series", _file("raw.tif", _two_series), DATA,
         ("INPUT/raw.tif", "2 series in 12 pages", "uint16", "to a file of its own")),
    Case("a TIFF with a page of another type", _file("raw.tif", _pages([*PLANES[:3], PLANES[3].astype(np.int16)])),
         DATA, ("INPUT/raw.tif", "uint8", "int16")),
    Case("a TIFF in colour", _file("raw.tif", _pages([np.stack([PLANES[0]] * 3, -1)] * 4, photometric="rgb")), DATA,
         ("INPUT/raw.tif", "colour image", "grey values")),
    Case("a TIFF with a palette", _file("raw.tif", _pages(PLANES, photometric="palette", colormap=COLOURS)), DATA,
         ("INPUT/raw.tif", "palette", "8-bit")),
    Case("a TIFF of real numbers that are WhiteIsZero",
         _file("raw.tif", _pages(PLANES.astype(np.float32), photometric="miniswhite")), DATA,
         ("INPUT/raw.tif", "WhiteIsZero", "float32")),
    Case("a TIFF of one picture", _file("raw.tif", _pages(PLANES[:1])), DATA, ("INPUT/raw.tif", "one picture")),
    Case("a hyperstack of ImageJ whose sections are called channels", _file("raw.tif", _hyperstack), DATA,
         ("INPUT/raw.tif", "channels by its metadata", "Image > Properties")),
    Case("an OME-TIFF with fewer planes than its XML names", _file("raw.ome.tif", _ome(4)), DATA,
         ("INPUT/raw.ome.tif", "missing: 2 of 6", "ended early")),
    Case("an OME-TIFF of which a file is lost", _file("raw.ome.tif", _ome(3, OTHER_FILE)), DATA,
         ("INPUT/raw.ome.tif", "missing: 3 of 6", "with the files that it names")),
    Case("slices of two channels in a folder", _file("slices", _slices("z0_c0", "z0_c1", "z1_c0", "z1_c1")), DATA,
         ("INPUT/slices", "2 series of numbers", "c0, c1", "a folder of its own")),
    Case("slices of two stacks in a folder", _file("slices", _slices("a_0", "a_1", "b_0", "b_1")), DATA,
         ("INPUT/slices", "2 like a_#", "2 like b_#")),
    Case("another picture among the slices", _file("slices", _slices("s_0", "s_1", "s_2", "overview")), DATA,
         ("INPUT/slices", "3 like s_#", "1 like overview")),
    Case("a slice of another size", _file("slices", _narrow_slice), DATA, ("INPUT/slices/s_2.tif", "(40, 30)")),
    # Chunks
    Case("a packed chunk (.gz) that is cut", _precomputed(_packed_and_cut), DATA, (".gz", "re-copy")),
    Case("a chunk file with an unknown ending", _precomputed(lambda files: files[0].rename(f"{files[0]}.lz4")), DATA,
         ("1 of 27 chunks", ".lz4 is there, but no chunk")),
    Case("a lost shard", _precomputed(lambda files: files[0].unlink(), sharding=SHARDS), DATA,
         (f"INPUT/{NAME}/8_8_10/0.shard", "chunks were never written")),
    Case("a cut shard", _precomputed(lambda files: _cut(files[0]), sharding=SHARDS), DATA, ("0.shard", "re-copy")),
    Case("an encoding of precomputed that is not read", _precomputed(
        lambda files: edit_json(files[0].parents[1] / "info", scales=[{"key": "8_8_10", "encoding": "crackle",
                                                                     "resolution": [8, 8, 10]}])), DATA,
         ("crackle", "codec that is not installed")),
    Case("a chunk under another name", _renamed, DATA,
         ("1 of 27 chunks", "1/0/1 is there, but no chunk by the metadata", "correct shape, chunks and their names")),
    Case("sparse = true, but not one chunk", _without_chunks, DATA, ("27 of 27 chunks", "copy the volume again")),
    Case("an N5 compressed with LZ4", _n5(compression={"type": "lz4", "blockSize": 65536}), DATA,
         ("raw.n5", "lz4", "codec that is not installed")),
    Case("label multisets of Paintera", _n5(isLabelMultiset=True), DATA, ("raw.n5", "paintera-convert to-scalar")),
    # HDF5
    Case("an HDF5 file that a program did not close", _file("raw.h5", _of_a_killed_writer, "channel/data"), DATA,
         ("INPUT/raw.h5", "another program is writing", "h5clear --status")),
    Case("an HDF5 filter that is not installed", _file("raw.h5", _filter_that_nobody_has, "channel/data"), DATA,
         ("INPUT/raw.h5", "filter 32700", "hdf5plugin", "h5repack")),
    Case("a virtual HDF5 dataset with a lost source", _file("raw.h5", _virtual, "channel/data"), DATA,
         ("INPUT/raw.h5", "is missing", "INPUT/lost.h5")),
    Case("an Imaris file whose size exceeds its dataset",
         _file("raw.ims", _hdf5(ImageSizeX="99", ImageSizeY="40", ImageSizeZ="40"), "channel/data"), DATA,
         ("INPUT/raw.ims", "ImageSizeZ, Y, X exceed", "(40, 40, 99)")),
    # Axes
    Case("HDF5 dimension labels that are no axes", _file("raw.h5", _hdf5(labels="abc"), "channel/data"), DATA,
         ("INPUT/raw.h5", "not z, y, x", "'a', 'b', 'c'")),
    Case("axistags of ilastik with a time axis in place of z",
         _file("raw.h5", _hdf5(axistags='{"axes": [{"key": "t"}, {"key": "y"}, {"key": "x"}]}'), "channel/data"), DATA,
         ("INPUT/raw.h5", "not z, y, x", "'t', 'y', 'x'")),
    Case("dimension_names of zarr 3 that are no axes", _file("raw.zarr", _named(dimension_names=["z", "lat", "lon"])),
         DATA, ("INPUT/raw.zarr", "not z, y, x", "'lat'")),
    Case("an axisOrder of webKnossos that contradicts the array", _file("raw", _webknossos, "color/1"), DATA,
         ("INPUT/raw/color/1", "name different axes")),
    Case("channels last, without names of the axes", _file("raw.zarr", _channel_last), DATA,
         ("INPUT/raw.zarr", "which one has the channels is not clear", "(40, 40, 40, 2)")),
    # Labels without a neuron
    Case("training labels that are all 0", _container("train", LABELS, np.zeros(TRAIN_VOX, np.uint64)), DATA,
         ("train.zarr/volumes/labels/neuron_ids", "no neuron in the labels", "labels_dataset")),
    Case("a ground truth that is all 0", _container("volume", LABELS, ZEROS), DATA,
         ("volume.zarr/volumes/labels/neuron_ids", "no neuron in the ground truth", "prepare.target.truth")),
    Case("a ground truth that is wholly masked", _container("volume", "volumes/labels/mask", ZEROS), DATA,
         ("volume.zarr/volumes/labels/neuron_ids", "ignored or background", 'mask = "none"')),
]  # fmt: skip
