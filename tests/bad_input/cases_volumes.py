"""Source volumes that contradict themselves, one another, or the experiment file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import tifffile
from bad_input.case import Case, Spoil, target, training_volume
from bad_input.lab import TARGET_VOX, TRAIN_VOX, Lab, edit_json, labels_of, write_source
from numpy.typing import NDArray

from lsdflow_contract.testing import membrane_raw

DATA, MISSING, CONFIG = 65, 66, 78
RAW, LABELS = "volumes/raw", "volumes/labels/neuron_ids"


def _raw(change: Callable[[NDArray[np.uint8]], NDArray[Any]], **attributes: Any) -> Spoil:
    """Raw of the training volume, changed."""

    def spoil(lab: Lab) -> None:
        write_source(lab.source("train", RAW), change(membrane_raw(labels_of(TRAIN_VOX))), **attributes)

    return spoil


def _labels(change: Callable[[NDArray[np.uint64]], NDArray[Any]] = lambda ids: ids, **attributes: Any) -> Spoil:
    """Labels of the training volume, changed."""
    return lambda lab: write_source(lab.source("train", LABELS), change(labels_of(TRAIN_VOX)), **attributes)


def _mask(values: NDArray[Any], **attributes: Any) -> Spoil:
    """A mask of the training volume."""
    return lambda lab: write_source(lab.source("train", "volumes/labels/mask"), values, **attributes)


def _attributes(**changes: Any) -> Spoil:
    """Attributes of the training volume's raw, changed."""
    return lambda lab: edit_json(lab.source("train", RAW) / ".zattrs", **changes)


def _with_nan(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    values = (raw / np.float32(255)).astype(np.float32)
    values[3, 4, 5:8] = np.nan
    return values


def _chunk(change: Callable[[bytes], bytes | None], container: str = "train", dataset: str = RAW) -> Spoil:
    """One chunk file, changed; None: lost."""

    def spoil(lab: Lab) -> None:
        path = lab.source(container, dataset) / "1.0.1"
        content = change(path.read_bytes())
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    return spoil


def _metadata(text: str) -> Spoil:
    """The metadata file of the training volume's raw holds `text`."""

    def spoil(lab: Lab) -> None:
        (lab.source("train", RAW) / ".zarray").write_text(text)

    return spoil


def _zarray(**changes: Any) -> Spoil:
    """Keys of the metadata file of the training volume's raw, changed."""
    return lambda lab: edit_json(lab.source("train", RAW) / ".zarray", **changes)


def _not_there(lab: Lab) -> None:
    shutil.rmtree(lab.source("train", LABELS))


def _two_formats(lab: Lab) -> None:
    folder = lab.root / "input" / "train.zarr"
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / "info").write_text(
        json.dumps({"type": "image", "scales": [{}], "@type": "neuroglancer_multiscale_volume"})
    )


def _slices_with_a_gap(lab: Lab) -> None:
    folder = lab.root / "input" / "slices"
    folder.mkdir()
    for number in (0, 1, 4, 5):
        tifffile.imwrite(folder / f"s{number:02}.tif", np.zeros((8, 8), np.uint8))
    lab.set_training(raw="../input/slices")


def _file_of(content: bytes, name: str = "raw.hdf") -> Spoil:
    """raw is a file with this content."""

    def spoil(lab: Lab) -> None:
        (lab.root / "input" / name).write_bytes(content)
        lab.set_training(raw=f"../input/{name}")

    return spoil


def _hdf(resolution: tuple[float, ...] | None) -> Spoil:
    """A CREMI file with this resolution."""

    def spoil(lab: Lab) -> None:
        labels = labels_of(TRAIN_VOX)
        with h5py.File(lab.root / "input" / "cremi.hdf", "w") as file:
            for name, values in ((RAW, membrane_raw(labels)), (LABELS, labels)):
                file[name] = values
                if resolution is not None:
                    file[name].attrs["resolution"] = resolution
        lab.set_training(raw="../input/cremi.hdf")

    return spoil


def _ome(**changes: Any) -> Spoil:
    """Raw of the training volume in an OME-NGFF 0.4 image, its multiscales changed."""

    def spoil(lab: Lab) -> None:
        folder = lab.root / "input" / "ome.zarr"
        write_source(folder / "0", membrane_raw(labels_of(TRAIN_VOX)), resolution=None, offset=None)
        image = {
            "version": "0.4",
            "axes": [{"name": a, "type": "space", "unit": "nanometer"} for a in "zyx"],
            "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [10.0, 8.0, 8.0]}]}],
        }
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
        (folder / ".zattrs").write_text(json.dumps({"multiscales": [{**image, **changes}]}))
        lab.set_training(raw="../input/ome.zarr", labels="../input/train.zarr")

    return spoil


def _loop(lab: Lab) -> None:
    loop = lab.root / "input" / "loop.zarr"
    loop.symlink_to(loop)
    lab.set_training(raw="../input/loop.zarr")


def _region(offset: str, shape: str) -> Spoil:
    return target(roi={"offset": offset, "shape": shape})


AXES_WITHOUT_UNIT = [{"name": a, "type": "space"} for a in "zyx"]
SCALE_TWICE = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [10.0, 8.0, 8.0]}] * 2}]

CASES = [
    # Metadata: never guessed, never two that disagree.
    Case("raw without a voxel size", _attributes(resolution=None), DATA,
         ("train.zarr/volumes/raw", "voxel size", 'voxel_size = "40, 8, 8 nm"', "experiment.toml")),
    Case("voxel_size and resolution differ", _attributes(voxel_size=[40, 8, 8]), DATA,
         ("train.zarr/volumes/raw", "(10, 8, 8)", "(40, 8, 8)", "voxel_size")),
    Case("resolution given as x,y,z", _attributes(voxel_size=[8, 8, 10]), DATA,
         ("train.zarr/volumes/raw", "reversed", "(8, 8, 10)")),
    Case("voxel size 0", _attributes(resolution=[0, 8, 8]), DATA, ("train.zarr/volumes/raw", "positive", "voxel_size")),
    Case("voxel size of two numbers", _attributes(resolution=[8, 8]), DATA, ("train.zarr/volumes/raw", "resolution")),
    Case("voxel size that is text", _attributes(resolution="isotropic"), DATA,
         ("train.zarr/volumes/raw", "resolution", "isotropic")),
    Case("unit that is no length", _attributes(units=["s", "s", "s"]), DATA, ("train.zarr/volumes/raw", "unit", "'s'")),
    Case("OME image whose axes have no unit", _ome(axes=AXES_WITHOUT_UNIT), DATA,
         ("ome.zarr", "voxel size", "voxel_size")),
    Case("OME image with two scales", _ome(datasets=SCALE_TWICE), DATA, ("ome.zarr", "one scale", "'scale', 'scale'")),
    Case("OME image that names an array that is not there",
         _ome(datasets=[{"path": "9", "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]}]),
         MISSING, ("ome.zarr/9", "scale level")),
    Case("CREMI file without resolution", _hdf(None), DATA, ("cremi.hdf", "voxel size", "voxel_size")),
    Case("axes that are not z, y, x", _attributes(axis_names=["z", "y", "y"]), DATA,
         ("train.zarr/volumes/raw", "axes")),
    Case("labels with another voxel size than raw", _labels(resolution=[20, 8, 8]), DATA,
         ("neuron_ids", "voxel size", "(20.0, 8.0, 8.0)", "(10.0, 8.0, 8.0)")),
    Case("labels that begin half a voxel off", _labels(offset=[5, 0, 0]), DATA,
         ("neuron_ids", "whole number of voxels", "(5.0, 0.0, 0.0)", "nearest that fits")),
    Case("labels that cover a part of raw", _labels(lambda ids: ids[:20]), DATA,
         ("neuron_ids", "(20, 40, 40)", "pad_labels = true")),
    Case("a mask with another voxel size", _mask(np.ones(TRAIN_VOX, np.uint8), resolution=[4, 4, 4]), DATA,
         ("volumes/labels/mask", "voxel size", "(4.0, 4.0, 4.0)")),
    # Values.
    Case("labels of type float", _labels(lambda ids: ids.astype(np.float32)), DATA,
         ("neuron_ids", "float32", "uint64")),
    Case("negative labels", _labels(lambda ids: np.where(ids == 3, -3, ids.astype(np.int64))), DATA,
         ("neuron_ids", "negative", "ignore_ids = [-3]")),
    Case("raw of type int16 without a range", _raw(lambda raw: raw.astype(np.int16) * 100), DATA,
         ("train.zarr/volumes/raw", "int16", "raw_range = [")),
    Case("raw of type float beyond 1", _raw(lambda raw: raw.astype(np.float32)), DATA,
         ("train.zarr/volumes/raw", "float32", "raw_range = [")),
    Case("raw of complex numbers", _raw(lambda raw: raw.astype(np.complex64)), DATA,
         ("train.zarr/volumes/raw", "complex64", "uint8")),
    Case("NaN in raw", _raw(_with_nan), DATA, ("train.zarr/volumes/raw", "NaN", "3 voxels", "(3, 4, 5)", "roi")),
    Case("raw with channels, none chosen", _raw(lambda raw: np.stack([raw, raw])), DATA,
         ("train.zarr/volumes/raw", "2 channels", "raw_channel = 0 ... 1")),
    Case("a mask with a value that means nothing", _mask(np.full(TRAIN_VOX, 7, np.uint8)), DATA,
         ("volumes/labels/mask", "[7]", "mask_train_value = 7")),
    Case("a mask of type float", _mask(np.ones(TRAIN_VOX, np.float32)), DATA,
         ("volumes/labels/mask", "float32", "uint8")),
    # Storage.
    Case("a truncated chunk", _chunk(lambda content: content[: len(content) // 2]), DATA,
         ("train.zarr/volumes/raw", "1.0.1", "re-copy")),
    Case("an empty chunk file", _chunk(lambda _: b""), DATA, ("train.zarr/volumes/raw", "1.0.1", "re-copy")),
    Case("a chunk of labels full of noise", _chunk(lambda content: b"\x00noise" * 40, dataset=LABELS), DATA,
         ("neuron_ids", "1.0.1", "re-copy")),
    Case("a lost chunk", _chunk(lambda _: None), DATA,
         ("train.zarr/volumes/raw/1.0.1", "1 of 27 chunks", "(1, 0, 1)", "sparse = true")),
    Case("a lost chunk of the target", _chunk(lambda _: None, "volume"), DATA,
         ("volume.zarr/volumes/raw", "1 of 8 chunks", "(1, 0, 1)", "sparse = true")),
    Case("a metadata file that is no JSON", _metadata("{shape:"), DATA, ("train.zarr/volumes/raw", "JSON")),
    Case("a metadata file without a shape", _zarray(shape=None), DATA, ("train.zarr/volumes/raw", "shape")),
    Case("an empty volume", _zarray(shape=[0, 40, 40]), DATA, ("train.zarr/volumes/raw", "(0, 40, 40)")),
    Case("an unknown compressor", _zarray(compressor={"id": "squash"}), DATA,
         ("train.zarr/volumes/raw", "codec that is not installed", "squash")),
    Case("metadata by which no file is a chunk", _zarray(dimension_separator="/"), DATA,
         ("train.zarr/volumes/raw", "dimension_separator", "0/0/0")),
    # Paths.
    Case("a path that does not exist", training_volume(raw="../input/trian.zarr"), MISSING,
         ("INPUT/trian.zarr", "did you mean", "train.zarr")),
    Case("a remote path", training_volume(raw="s3://bucket/a.zarr"), CONFIG,
         ("experiment.toml", "only local paths", "mount or copy")),
    Case("a link that points to itself", _loop, CONFIG, ("loop.zarr", "experiment.toml", "correct the path")),
    Case("a path with a NUL in it", training_volume(raw="../input/train\0.zarr"), CONFIG,
         ("train\\x00.zarr", "experiment.toml", "correct the path")),
    Case("a path that is too long", training_volume(raw="../input/" + "x" * 300), CONFIG,
         ("input/xxx", "experiment.toml", "correct the path")),
    Case("a dataset that does not exist", training_volume(raw_dataset="volumes/row"), MISSING,
         ("volumes/row", "volumes/raw")),
    Case("labels that are not there", _not_there, MISSING, ("neuron_ids", "train.zarr", "volumes/raw")),
    Case("a mask that is configured and not there", training_volume(mask="../input/train.zarr", mask_dataset="masc"),
         MISSING, ("masc", "train.zarr")),
    Case("labels_dataset names raw", training_volume(labels_dataset=RAW), CONFIG,
         ("volumes/raw", "set labels_dataset")),
    Case("a file of an unknown format", _file_of(b"not a volume\n", "raw.mrc"), DATA,
         ("raw.mrc", "no volume format", "HDF5", "convert it with mrc2tif")),
    Case("a truncated HDF5 file", _file_of(b"\x89HDF\r\n\x1a\n" + b"\0" * 20), DATA, ("raw.hdf",)),
    Case("a truncated TIFF file", _file_of(b"II*\0\x08\0\0\0", "raw.tif"), DATA, ("raw.tif",)),
    Case("a folder of slices of which two are missing", _slices_with_a_gap, DATA,
         ("INPUT/slices", "2 slices are missing", "2, 3", "s04.tif follows s01.tif")),
    Case("a folder of two formats", _two_formats, DATA, ("train.zarr", "more than one", "zarr, precomputed")),
    # Regions.
    Case("a region outside of the target", _region("100, 0, 0 vox", "8 vox"), CONFIG,
         ("prepare.target.roi", "leaves the volume", "intersection empty")),
    Case("an empty region", _region("0 vox", "0 vox"), CONFIG, ("prepare.target.roi", "empty", "at least one voxel")),
    Case("a region of half voxels", _region("0 nm", "75 nm"), CONFIG,
         ("prepare.target.roi.shape", "whole number of voxels", "nearest that fits")),
    Case("resample_to between two voxel sizes", target(resample_to="20, 12, 16 nm"), CONFIG,
         ("prepare.target.resample_to", "volume.zarr", "n or 1/n times", "nearest that fits")),
    Case("resample_to larger than the volume", target(resample_to="20, 800, 16 nm"), CONFIG,
         ("smaller than one voxel of resample_to", "volume.zarr", "larger roi")),
    Case("a region to ignore that leaves the volume",
         training_volume(ignore_regions=[{"offset": "0 vox", "shape": f"{TARGET_VOX[0] * 9} vox"}]), CONFIG,
         ("prepare.training.ignore_regions", "leaves the volume")),
]  # fmt: skip
