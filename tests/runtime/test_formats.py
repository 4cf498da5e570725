"""Every foreign format gives back the voxels, voxel size and offset that were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorstore
import tifffile
import zarr

from lsdflow_contract.geometry import Box
from lsdflow_runtime.formats.detect import detect_format, open_source

SHAPE = (5, 7, 9)
SIZE_NM = (40.0, 8.0, 4.5)
OFFSET_NM = (120.0, 16.0, 9.0)
RAW = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
IDS = np.random.default_rng(1).integers(2**53, 2**63, SHAPE, np.uint64)
DATASET = "volumes/raw"
Writer = Callable[[Path, np.ndarray], Path]


def write_zarr2(path: Path, data: np.ndarray) -> Path:
    return _zarr(path / "a.zarr", data, 2, {"resolution": SIZE_NM, "offset": OFFSET_NM})


def write_zarr3(path: Path, data: np.ndarray) -> Path:
    attributes = {"voxel_size": SIZE_NM, "offset": OFFSET_NM, "axis_names": list("zyx"), "units": ["nm"] * 3}
    return _zarr(path / "a.zarr", data, 3, attributes)


def write_zarr3_sharded(path: Path, data: np.ndarray) -> Path:
    folder = path / "a.zarr" / DATASET
    attributes = {"voxel_size": SIZE_NM, "offset": OFFSET_NM}
    array = zarr.create_array(
        folder, shape=data.shape, dtype=data.dtype, chunks=(2, 2, 3), shards=(4, 4, 6), attributes=attributes
    )
    array[:] = data
    return path / "a.zarr"


def write_n5(path: Path, data: np.ndarray) -> Path:
    folder = path / "a.n5" / DATASET
    spec = {
        "driver": "n5",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        "metadata": {"dimensions": data.shape[::-1], "blockSize": [4, 4, 3], "dataType": str(data.dtype)},
        "create": True,
    }
    tensorstore.open(spec).result().write(data.transpose(2, 1, 0)).result()
    metadata = json.loads((folder / "attributes.json").read_text())
    metadata |= {"resolution": SIZE_NM[::-1], "offset": OFFSET_NM[::-1]}
    (folder / "attributes.json").write_text(json.dumps(metadata))
    (path / "a.n5" / "attributes.json").write_text('{"n5": "2.0.0"}')
    return path / "a.n5"


def write_hdf5(path: Path, data: np.ndarray) -> Path:
    with h5py.File(path / "a.hdf", "w") as file:
        node = file.create_dataset(DATASET, data=data, chunks=(2, 4, 4), compression="gzip")
        node.attrs["resolution"], node.attrs["offset"] = SIZE_NM, OFFSET_NM
    return path / "a.hdf"


def write_precomputed(path: Path, data: np.ndarray) -> Path:
    # voxel_offset is in voxels: 120 / 40, 16 / 8, 9 / 4.5
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{path}/a.precomputed/"},
        "multiscale_metadata": {"type": "segmentation", "data_type": str(data.dtype), "num_channels": 1},
        "scale_metadata": {
            "size": data.shape[::-1],
            "encoding": "raw",
            "chunk_size": [4, 4, 3],
            "resolution": SIZE_NM[::-1],
            "voxel_offset": [2, 2, 3],
            "key": "4_8_40",
        },
        "create": True,
    }
    store = tensorstore.open(spec).result()
    store.write(data.transpose(2, 1, 0)[..., None]).result()
    return path / "a.precomputed"


def write_ngff04(path: Path, data: np.ndarray) -> Path:
    return _ngff(path / "a.ome.zarr", data, 2)


def write_ngff05(path: Path, data: np.ndarray) -> Path:
    return _ngff(path / "a.ome.zarr", data, 3)


def write_roi_json(path: Path, data: np.ndarray) -> Path:
    write_zarr2(path, data)
    content = {"container": "a.zarr", "offset": [160, 24, 9], "size": [80, 16, 9]}
    (path / "a.json").write_text(json.dumps(content))
    return path / "a.json"


def _zarr(path: Path, data: np.ndarray, form: int, attributes: dict, chunks: tuple = (2, 4, 4)) -> Path:
    array = zarr.create_array(
        path / DATASET, shape=data.shape, dtype=data.dtype, chunks=chunks, zarr_format=form, attributes=attributes
    )
    array[:] = data
    zarr.open_group(path, mode="a", zarr_format=form)
    return path


def _ngff(path: Path, data: np.ndarray, form: int) -> Path:
    """Axes t, c, z, y, x in micrometres; two levels, the coarser with the centre shift of averaging."""
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    size_um, offset_um = np.array(SIZE_NM) / 1e3, np.array(OFFSET_NM) / 1e3
    datasets = []
    for level, factor in enumerate((1, 2)):
        part = data[None, None, ::factor, ::factor, ::factor]
        zarr.create_array(path / str(level), data=part, chunks=(1, 1, 2, 4, 4), zarr_format=form)
        scale = [1.0, 1.0, *(size_um * factor).tolist()]
        shift = [0.0, 0.0, *(offset_um + size_um * (factor - 1) / 2).tolist()]
        steps = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": shift}]
        datasets.append({"path": str(level), "coordinateTransformations": steps})
    image = [{"axes": axes, "datasets": datasets, "version": "0.4"}]
    attributes = {"multiscales": image} if form == 2 else {"ome": {"version": "0.5", "multiscales": image}}
    zarr.open_group(path, mode="a", zarr_format=form, attributes=attributes)
    return path


PLACED: dict[str, tuple[str, Writer]] = {
    "zarr 2": ("zarr", write_zarr2),
    "zarr 3": ("zarr", write_zarr3),
    "zarr 3 sharded": ("zarr", write_zarr3_sharded),
    "n5": ("n5", write_n5),
    "hdf5": ("hdf5", write_hdf5),
    "precomputed": ("precomputed", write_precomputed),
    "ome-ngff 0.4": ("zarr", write_ngff04),
    "ome-ngff 0.5": ("zarr", write_ngff05),
    "json roi": ("json", write_roi_json),
}


@pytest.mark.proves("DAT-07")
@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("data", [RAW, IDS], ids=["raw u8", "ids above 2^53"])
def test_voxels_size_and_offset_come_back_bit_identical(tmp_path: Path, name: str, data: np.ndarray) -> None:
    form, write = PLACED[name]
    path = write(tmp_path, data)
    assert detect_format(path, DATASET) == form
    with open_source(path, None, DATASET) as volume:
        assert (volume.shape_vox, volume.channels, volume.dtype) == (SHAPE, None, data.dtype)
        whole = volume.read(volume.box)
        assert whole.dtype == data.dtype
        assert whole.flags.c_contiguous
        np.testing.assert_array_equal(whole, data)
        geometry = volume.geometry()
        assert geometry.voxel_size_nm == SIZE_NM
        assert geometry.offset_nm == OFFSET_NM
        assert geometry.shape_vox == SHAPE


@pytest.mark.parametrize("name", PLACED)
def test_any_box_is_the_same_as_the_slice_of_the_whole(tmp_path: Path, name: str) -> None:
    path = PLACED[name][1](tmp_path, RAW)
    with open_source(path, None, DATASET) as volume:
        for begin, shape in (((0, 0, 0), (1, 1, 1)), ((1, 3, 2), (3, 4, 7)), ((4, 6, 8), (1, 1, 1))):
            box = Box(begin, shape)
            np.testing.assert_array_equal(volume.read(box), RAW[box.slices()])


@pytest.mark.proves("DAT-16")
def test_json_roi_names_its_region(tmp_path: Path) -> None:
    with open_source(write_roi_json(tmp_path, RAW), None, DATASET) as volume:
        assert volume.roi_nm == ((160.0, 24.0, 9.0), (80.0, 16.0, 9.0))


@pytest.mark.parametrize("write", [write_ngff04, write_ngff05])
def test_coarser_ome_level_has_the_same_corner_and_its_own_size(tmp_path: Path, write: Writer) -> None:
    with open_source(write(tmp_path, RAW), "1") as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW[::2, ::2, ::2])
        assert volume.geometry().voxel_size_nm == (80.0, 16.0, 9.0)
        assert volume.geometry().offset_nm == OFFSET_NM


@pytest.mark.proves("DAT-16")
@pytest.mark.parametrize("form", [2, 3])
def test_scale_pyramid_without_level_is_its_s0(tmp_path: Path, form: int) -> None:
    group = tmp_path / "a.zarr" / DATASET
    zarr.create_array(group / "s0", data=RAW, zarr_format=form)
    zarr.create_array(group / "s1", data=RAW[::2, ::2, ::2], zarr_format=form)
    zarr.open_group(group, mode="a", zarr_format=form, attributes={"resolution": [8, 8, 8]})
    with open_source(tmp_path / "a.zarr", None, DATASET) as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)
        assert volume.geometry().voxel_size_nm == (8.0, 8.0, 8.0)
    with open_source(tmp_path / "a.zarr", f"{DATASET}/s1") as volume:
        assert volume.shape_vox == (3, 4, 5)


def test_n5_pyramid_level_multiplies_pixel_resolution(tmp_path: Path) -> None:
    container = write_n5(tmp_path, RAW)
    path = container / DATASET / "attributes.json"
    metadata = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("resolution", "offset")}
    metadata["pixelResolution"] = {"unit": "um", "dimensions": [0.004, 0.008, 0.04]}
    metadata["downsamplingFactors"] = [2, 2, 1]
    path.write_text(json.dumps(metadata))
    with open_source(container, DATASET) as volume:
        assert volume.geometry().voxel_size_nm == (40.0, 16.0, 8.0)


def test_channels_come_first_in_every_storage_order(tmp_path: Path) -> None:
    data = np.stack([RAW, 255 - RAW])
    zarr.create_array(tmp_path / "czyx.zarr", data=data, zarr_format=2)
    zarr.create_array(
        tmp_path / "named.zarr", data=data.transpose(3, 1, 0, 2), dimension_names=("x", "z", "c", "y"), zarr_format=3
    )
    for name in ("czyx.zarr", "named.zarr"):
        with open_source(tmp_path / name) as volume:
            assert volume.channels == 2
            np.testing.assert_array_equal(volume.read(volume.box), data)


@pytest.mark.proves("DAT-07")
@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_multi_page_tiff_is_a_volume(tmp_path: Path, bigtiff: bool, compression: str | None) -> None:
    data = RAW.astype(np.uint16) * 257
    tifffile.imwrite(
        tmp_path / "a.tif", data, bigtiff=bigtiff, compression=compression, photometric="minisblack", rowsperstrip=2
    )
    with open_source(tmp_path / "a.tif") as volume:
        np.testing.assert_array_equal(volume.read(volume.box), data)
        np.testing.assert_array_equal(volume.read(Box((1, 3, 2), (3, 3, 4))), data[1:4, 3:6, 2:6])
        assert volume.claims == ()


def test_slices_are_sorted_by_number_not_by_text(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    folder.mkdir()
    stack = np.random.default_rng(2).integers(0, 255, (12, 6, 8), np.uint8)
    for z, page in enumerate(stack):
        tifffile.imwrite(folder / f"slice_{z}.tif", page)
    with open_source(folder) as volume:
        np.testing.assert_array_equal(volume.read(volume.box), stack)
        np.testing.assert_array_equal(volume.read(Box((9, 1, 2), (2, 3, 4))), stack[9:11, 1:4, 2:6])


@pytest.mark.parametrize(
    ("unit", "scale"), [("um", 1e-3), ("micron", 1e-3), ("nm", 1.0), ("inch", 1 / 2.54e7), ("\\u00B5m", 1e-3)]
)
def test_imagej_spacing_and_resolution_in_any_unit(tmp_path: Path, unit: str, scale: float) -> None:
    z, y, x = (value * scale for value in (40.0, 8.0, 4.0))
    tifffile.imwrite(
        tmp_path / "a.tif",
        RAW,
        imagej=True,
        resolution=(1 / x, 1 / y),
        metadata={"spacing": z, "unit": unit, "axes": "ZYX"},
    )
    with open_source(tmp_path / "a.tif") as volume:
        assert volume.geometry().voxel_size_nm == pytest.approx((40, 8, 4), rel=1e-5)


def test_ome_tiff_sizes_have_units(tmp_path: Path) -> None:
    metadata = {"axes": "ZYX", "PhysicalSizeZ": 0.04, "PhysicalSizeY": 8, "PhysicalSizeX": 4, "PhysicalSizeYUnit": "nm"}
    tifffile.imwrite(tmp_path / "a.ome.tif", RAW, metadata=metadata | {"PhysicalSizeXUnit": "nm"})
    with open_source(tmp_path / "a.ome.tif") as volume:
        assert volume.geometry().voxel_size_nm == (40.0, 8.0, 4.0)
        np.testing.assert_array_equal(volume.read(volume.box), RAW)


def test_real_volume_is_read_in_place(shared_data: Path) -> None:
    with open_source(shared_data / "lsd_reference" / "fib.zarr", "gt_affs") as volume:
        assert (volume.channels, volume.shape_vox) == (3, (92, 92, 92))
        assert volume.geometry().offset_nm == (416.0, 416.0, 416.0)
        stored = zarr.open_array(shared_data / "lsd_reference" / "fib.zarr" / "gt_affs", mode="r")
        np.testing.assert_array_equal(volume.read(Box((40, 0, 80), (10, 92, 12))), stored[:, 40:50, :, 80:92])
