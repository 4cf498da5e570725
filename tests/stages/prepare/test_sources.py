"""Changed voxels of a source are noticed in every format, and a copy of the same bytes is the same source."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorstore
import tifffile
import zarr

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_prepare import survey as surveys
from lsdflow_prepare import volume_passes
from lsdflow_prepare.stage import Prepare
from lsdflow_runtime.formats import file_stamp as file_stamps

SHAPE = (20, 18, 16)
RAW_VALUES = np.random.default_rng(0).integers(1, 255, SHAPE, np.uint8)
IDS = np.random.default_rng(1).integers(1, 9, SHAPE, np.uint64)
Make = Callable[..., Experiment]
Write = Callable[[Path, str, np.ndarray], dict[str, Any]]


def zarr_of(form: int, **more: Any) -> Write:
    def write(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
        path = folder / f"{role}.zarr"
        array = zarr.create_array(
            path, shape=SHAPE, dtype=data.dtype, chunks=(8, 8, 8), zarr_format=form, overwrite=True, **more
        )
        array[:] = data
        return {role: str(path), f"{role}_dataset": ""}

    return write


def ngff(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
    path = folder / f"{role}.ome.zarr"
    zarr.create_array(path / "0", data=data, chunks=(8, 8, 8), zarr_format=2, overwrite=True)
    steps = [{"type": "scale", "scale": [8.0, 8.0, 8.0]}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": steps}], "version": "0.4"}
    zarr.open_group(path, mode="a", zarr_format=2, attributes={"multiscales": [image]})
    return {role: str(path), f"{role}_dataset": ""}


def n5(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
    path = folder / f"{role}.n5"
    metadata = {"dimensions": SHAPE[::-1], "blockSize": [8, 8, 8], "dataType": str(data.dtype)}
    _stored({"driver": "n5", "metadata": metadata}, path, data.transpose(2, 1, 0))
    return {role: str(path), f"{role}_dataset": ""}


def precomputed(sharded: bool) -> Write:
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": 1,
        "minishard_bits": 1,
        "shard_bits": 1,
        "hash": "identity",
    }

    def write(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
        scale = {"size": SHAPE[::-1], "encoding": "raw", "chunk_size": [8, 8, 8], "resolution": [8, 8, 8], "key": "8"}
        metadata = {"type": "segmentation", "data_type": str(data.dtype), "num_channels": 1}
        spec = {
            "driver": "neuroglancer_precomputed",
            "multiscale_metadata": metadata,
            "scale_metadata": scale | ({"sharding": sharding} if sharded else {}),
        }
        _stored(spec, folder / f"{role}.precomputed", data.transpose(2, 1, 0)[..., None])
        return {role: str(folder / f"{role}.precomputed")}

    return write


def _stored(spec: dict[str, Any], path: Path, data: np.ndarray) -> None:
    kvstore = {"driver": "file", "path": f"{path}/"}
    store = tensorstore.open(spec | {"kvstore": kvstore, "create": True, "delete_existing": True}).result()
    store.write(data).result()


def hdf5_in(inner: str) -> Write:
    def write(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
        (folder / inner).mkdir(exist_ok=True)
        path = folder / inner / f"{role}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=data, chunks=(8, 8, 8))
        return {role: str(path), f"{role}_dataset": "data"}

    return write


def tiff_slices(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
    path = folder / role
    path.mkdir(exist_ok=True)
    for z, page in enumerate(data.astype(np.uint8)):
        tifffile.imwrite(path / f"{z:03}.tif", page)
    return {role: str(path)}


def tiff_pages(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
    tifffile.imwrite(folder / f"{role}.tif", data.astype(np.uint8), photometric="minisblack")
    return {role: str(folder / f"{role}.tif")}


def region_of_zarr(folder: Path, role: str, data: np.ndarray) -> dict[str, Any]:
    inside = zarr_of(2)(folder, role, data)[role]
    path = folder / f"{role}.json"
    size = [8 * n for n in SHAPE]
    path.write_text(json.dumps({"container": inside, "offset": [0, 0, 0], "size": size}))
    return {role: str(path), f"{role}_dataset": ""}


FORMATS: dict[str, Write] = {
    "zarr 2": zarr_of(2),
    "zarr 3": zarr_of(3),
    "zarr 3 sharded": zarr_of(3, shards=(16, 16, 16)),
    "OME-NGFF": ngff,
    "N5": n5,
    "precomputed": precomputed(sharded=False),
    "precomputed sharded": precomputed(sharded=True),
    "HDF5": hdf5_in("plain"),
    "HDF5 under a colon": hdf5_in("a:b"),
    "HDF5 under a bracket": hdf5_in("a (copy)"),
    "TIFF slices": tiff_slices,
    "TIFF pages": tiff_pages,
    "JSON ROI": region_of_zarr,
}


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> Write:
    return FORMATS[request.param]


def one_voxel_changed(data: np.ndarray) -> np.ndarray:
    changed = data.copy()
    changed[17, 3, 5] = changed[17, 3, 5] % 7 + 1
    assert (changed != data).sum() == 1
    return changed


def prepared(write: Write, folder: Path, experiment: Make) -> Experiment:
    """An experiment of one training volume, finished, whose sources are 5 s old."""
    tables = write(folder, "raw", RAW_VALUES) | write(folder, "labels", IDS)
    loaded = experiment(**{"voxel_size": "8 nm"} | tables)
    for path in (p for key in ("raw", "labels") for p in files_of(Path(tables[key]))):
        at = path.stat()
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns - 5 * 10**9))
    Prepare().run(loaded)
    return loaded


def files_of(path: Path) -> list[Path]:
    path = path.with_suffix(".zarr") if path.suffix == ".json" else path
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]


def made(loaded: Experiment, dataset: str) -> np.ndarray:
    return zarr.open_array(loaded.layout.training_volume("a") / dataset, mode="r")[:]


def test_a_changed_voxel_makes_another_volume_and_the_earlier_one_counts_again_with_its_source(
    form: Write, tmp_path: Path, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    loaded = prepared(form, tmp_path, experiment)
    first = read_manifest(loaded.layout, "prepare")
    form(tmp_path, "labels", one_voxel_changed(IDS))
    assert Prepare().validate(loaded) == []
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), one_voxel_changed(IDS))
    assert read_manifest(loaded.layout, "prepare").identity != first.identity
    (message,) = (record.message for record in caplog.records if "this is another volume" in record.message)
    assert "/labels" in message
    form(tmp_path, "labels", IDS)
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), IDS)
    assert read_manifest(loaded.layout, "prepare") == first
    assert Prepare().verify(loaded)["identity"] == first.identity


def _times(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files_of(folder)}


@pytest.mark.proves("NEW-04")
@pytest.mark.parametrize("form", [zarr_of(2, compressors=None), hdf5_in("plain"), tiff_pages, tiff_slices])
def test_other_voxels_of_the_same_size_and_time_are_another_volume(
    form: Write, tmp_path: Path, experiment: Make
) -> None:
    loaded = prepared(form, tmp_path, experiment)
    source = Path(loaded.tables["prepare"]["training"][0]["labels"])
    before = _times(source)
    form(tmp_path, "labels", one_voxel_changed(IDS))
    for path, (_, modified_ns) in before.items():
        os.utime(path, ns=(modified_ns, modified_ns))
    assert _times(source) == before
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), one_voxel_changed(IDS))


def test_a_source_that_changes_while_it_is_read_is_refused_and_nothing_of_it_is_kept(
    tmp_path: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = zarr_of(2)
    tables = write(tmp_path, "raw", RAW_VALUES) | write(tmp_path, "labels", IDS)
    loaded = experiment(**{"voxel_size": "8 nm"} | tables)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_of(tmp_path / "raw.zarr")}
    real, changes = volume_passes.make_block, iter([True])

    def make_and_change(*arguments: Any) -> Any:
        if next(changes, False):
            write(tmp_path, "raw", 255 - RAW_VALUES)
        return real(*arguments)

    monkeypatch.setattr(volume_passes, "make_block", make_and_change)
    with pytest.raises(BadData, match="changed while it was read") as caught:
        Prepare().run(loaded)
    assert caught.value.where == f"{tmp_path / 'raw.zarr'}"
    assert not loaded.layout.manifest("prepare").exists()
    # The file as it was, with its time: the blocks that were read of the other one must not count.
    write(tmp_path, "raw", 255 - RAW_VALUES)
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), 255 - RAW_VALUES)
    for path, (content, modified_ns) in before.items():
        path.write_bytes(content)
        os.utime(path, ns=(modified_ns, modified_ns))
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), RAW_VALUES)


def test_labels_of_which_only_a_sample_was_read_are_refused_once_all_of_them_turn_out_to_be_empty(
    tmp_path: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(surveys, "SAMPLE_EDGE_VOX", 4)
    monkeypatch.setattr(surveys, "MOST_BOXES", 1)
    write = hdf5_in("plain")
    tables = write(tmp_path, "raw", RAW_VALUES) | write(tmp_path, "labels", np.zeros_like(IDS))
    loaded = experiment(**{"voxel_size": "8 nm"} | tables)
    with caplog.at_level("WARNING"):
        assert Prepare().validate(loaded) == []
    assert "has no neuron in a sample of 64 voxels" in caplog.text
    with pytest.raises(BadData, match="no neuron"):
        Prepare().run(loaded)
    assert not loaded.layout.manifest("prepare").exists()


def test_the_stamp_of_a_large_file_reads_pieces_from_first_to_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stamps, "PIECE_BYTES", 10)
    monkeypatch.setattr(file_stamps, "SAMPLED_BYTES", 100)
    file = tmp_path / "large"
    file.write_bytes(bytes(1000))
    first = file_stamps.file_stamp([file])
    seen = []
    for at in (0, 5, 15, 995, 999):
        time = file.stat().st_mtime_ns
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(b"x")
        os.utime(file, ns=(time, time))
        seen.append(file_stamps.file_stamp([file]) != first)
        file.write_bytes(bytes(1000))
        os.utime(file, ns=(time, time))
    assert seen == [True, True, False, True, True]
    os.utime(file, ns=(time, time + 1))
    assert file_stamps.file_stamp([file]) != first, "the same bytes, written again"


def test_the_stamp_of_many_files_is_that_of_their_names_whatever_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stamps, "SAMPLED_FILES", 4)
    monkeypatch.setattr(file_stamps, "FILES_AT_ONCE", 3)
    stamps = []
    for order in (range(20), range(19, -1, -1)):
        folder = tmp_path / f"from {order[0]}"
        folder.mkdir()
        for number in order:
            (folder / str(number)).write_bytes(b"x" * 10)
            os.utime(folder / str(number), ns=(0, 0))
        stamps.append(file_stamps.file_stamp([folder]))
    assert stamps[0] == stamps[1]
    for number in range(20):
        (folder / str(number)).write_bytes(b"y" * 10)
        os.utime(folder / str(number), ns=(0, 0))
    assert file_stamps.file_stamp([folder]) != stamps[0]


@pytest.mark.proves("NEW-04")
def test_a_copy_of_the_same_bytes_is_the_same_source(
    form: Write, tmp_path: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = prepared(form, tmp_path, experiment)
    before = loaded.layout.manifest("prepare").read_bytes()
    for path in (p for p in tmp_path.iterdir() if p.name.startswith(("raw", "labels", "a", "plain"))):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, tmp_path / "copy", **({"copy_function": shutil.copy} if path.is_dir() else {}))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        (tmp_path / "copy").rename(path)
    assert Prepare().validate(loaded) == []
    assert Prepare().verify(loaded)["verified"]
    Prepare().run(loaded)
    assert loaded.layout.manifest("prepare").read_bytes() == before
    monkeypatch.setattr(volume_passes, "make_block", lambda *_: pytest.fail("the sources were read again"))
    Prepare().run(loaded)


def test_sources_that_moved_to_another_folder_are_the_same_sources(
    tmp_path: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = prepared(zarr_of(2), tmp_path, experiment)
    before = loaded.layout.manifest("prepare").read_bytes()
    tables = dict(loaded.tables["prepare"]["training"][0])
    moved = tmp_path / "moved"
    moved.mkdir()
    for key in ("raw", "labels"):
        tables[key] = str(shutil.move(tables[key], moved / Path(tables[key]).name))
    after = experiment(**{key: value for key, value in tables.items() if key != "name"})
    monkeypatch.setattr(volume_passes, "make_block", lambda *_: pytest.fail("the sources were read again"))
    assert Prepare().verify(after)["verified"]
    Prepare().run(after)
    assert Prepare().repair(after)["broken"] == 0
    assert loaded.layout.manifest("prepare").read_bytes() == before


def test_other_voxels_at_another_path_are_another_volume(tmp_path: Path, experiment: Make) -> None:
    loaded = prepared(zarr_of(2), tmp_path, experiment)
    first = read_manifest(loaded.layout, "prepare")
    tables = dict(loaded.tables["prepare"]["training"][0])
    (tmp_path / "other").mkdir()
    tables |= zarr_of(2)(tmp_path / "other", "labels", one_voxel_changed(IDS))
    after = experiment(**{key: value for key, value in tables.items() if key != "name"})
    with pytest.raises(BadData, match="a source of training/a is not what it was"):
        Prepare().repair(after)
    Prepare().run(after)
    np.testing.assert_array_equal(made(after, LABELS.dataset), one_voxel_changed(IDS))
    assert read_manifest(after.layout, "prepare").identity != first.identity


@pytest.mark.parametrize("change", ["touched", "moved"])
def test_after_an_interrupted_run_a_copy_of_its_sources_gives_the_same_volume(
    tmp_path: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(volume_passes, "CHUNK_VOX", 8)
    monkeypatch.setattr(volume_passes, "block_shape", lambda *_: (8, 24, 16))
    write, make_block = zarr_of(2), volume_passes.make_block
    tables = write(tmp_path, "raw", RAW_VALUES) | write(tmp_path, "labels", IDS)
    loaded = experiment(voxel_size="8 nm", **tables)
    begun: list[object] = []

    def until_the_second_labels(*given: Any) -> Any:
        if len(begun) == 4:
            raise BadData("stopped")
        begun.append(given)
        return make_block(*given)

    with monkeypatch.context() as patch:
        patch.setattr(volume_passes, "make_block", until_the_second_labels)
        with pytest.raises(BadData, match="stopped"):
            Prepare().run(loaded)
    if change == "touched":
        for path in (*files_of(tmp_path / "raw.zarr"), *files_of(tmp_path / "labels.zarr")):
            path.touch()
    else:
        (tmp_path / "moved").mkdir()
        for name in ("raw", "labels"):
            tables[name] = str(shutil.move(tables[name], tmp_path / "moved" / Path(tables[name]).name))
        loaded = experiment(voxel_size="8 nm", **tables)
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), RAW_VALUES)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), IDS)
    assert Prepare().verify(loaded)["verified"]
