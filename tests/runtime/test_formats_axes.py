"""The order of the axes that a file names is used, in every spelling; an unknown name is refused, with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorstore
import zarr

from lsdflow_contract.errors import BadData
from lsdflow_runtime.formats.detect import open_source

RAW = np.random.default_rng(0).integers(1, 255, (4, 6, 8), np.uint8)
TWO = np.stack([RAW, 255 - RAW])
Write = Callable[[Path, np.ndarray, Sequence[Any]], Path]


def zarr3(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    zarr.create_array(folder / "a.zarr", data=data, dimension_names=names, zarr_format=3)
    return folder / "a.zarr"


def zarr2(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    zarr.create_array(folder / "a.zarr", data=data, zarr_format=2, attributes={"_ARRAY_DIMENSIONS": list(names)})
    return folder / "a.zarr"


def hdf5_labels(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = data
        for axis, name in zip(file["raw"].dims, names, strict=True):
            axis.label = name or ""
    return folder / "a.h5"


def hdf5_scales(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = data
        for number, (axis, name) in enumerate(zip(file["raw"].dims, names, strict=True)):
            if name:
                file[f"scales{number}/{name}"] = np.arange(data.shape[number])
                file[f"scales{number}/{name}"].make_scale()
                axis.attach_scale(file[f"scales{number}/{name}"])
    return folder / "a.h5"


def ilastik(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = data
        axes = [{"key": name, "typeFlags": 2, "resolution": 0, "description": ""} for name in names]
        file["raw"].attrs["axistags"] = json.dumps({"axes": axes})
    return folder / "a.h5"


def webknossos(folder: Path, data: np.ndarray, names: Sequence[Any]) -> Path:
    zarr.create_array(folder / "a" / "color" / "1", data=data, zarr_format=2)
    order = {name: place for place, name in enumerate(names)}
    layers = [{"name": "color", "mags": [{"mag": [1, 1, 1], "path": "./color/1", "axisOrder": order}]}]
    (folder / "a" / "datasource-properties.json").write_text(json.dumps({"dataLayers": layers}))
    return folder / "a" / "color" / "1"


WRITERS: list[Write] = [zarr3, zarr2, hdf5_labels, hdf5_scales, ilastik, webknossos]


def opened(path: Path) -> Any:
    return open_source(path, "raw" if path.suffix == ".h5" else "")


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("order", ["zyxc", "cxyz", "xyz", "czyx", "yxz"])
def test_named_axes_are_used(tmp_path: Path, write: Write, order: str) -> None:
    data = TWO if "c" in order else RAW
    stored = data.transpose([("czyx" if "c" in order else "zyx").index(letter) for letter in order])
    with opened(write(tmp_path, stored, list(order))) as volume:
        assert volume.channels == (2 if "c" in order else None)
        np.testing.assert_array_equal(volume.read(volume.box), data)


@pytest.mark.parametrize("write", [zarr3, zarr2, hdf5_labels])
@pytest.mark.parametrize("words", [["width", "height", "depth"], ["X", "Y", "Z"], ["columns", "rows", "sections"]])
def test_axes_named_in_words_are_used(tmp_path: Path, write: Write, words: list[str]) -> None:
    with opened(write(tmp_path, RAW.T, words)) as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)


def test_a_time_axis_of_one_point_and_channels_at_the_end_are_read(tmp_path: Path) -> None:
    with opened(ilastik(tmp_path, np.moveaxis(TWO, 0, -1)[None], "tzyxc")) as volume:
        np.testing.assert_array_equal(volume.read(volume.box), TWO)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    "names", [["p", "q", "r"], ["z", "y", "depth"], ["z", "y", "lateral"], ["dim_2", "dim_1", "dim_0"]]
)
def test_axes_of_unknown_or_repeated_names_are_refused_with_the_names(
    tmp_path: Path, write: Write, names: list[str]
) -> None:
    with pytest.raises(BadData, match="not z, y, x") as caught:
        opened(write(tmp_path, RAW, names))
    assert all(name in caught.value.found for name in names)


@pytest.mark.parametrize("write", [zarr3, hdf5_labels, hdf5_scales])
def test_axes_of_which_some_have_no_name_are_refused(tmp_path: Path, write: Write) -> None:
    with pytest.raises(BadData, match="not z, y, x"):
        opened(write(tmp_path, RAW, ["x", None, None]))


@pytest.mark.parametrize("names", [[None] * 3, ["dim_0", "dim_1", "dim_2"]])
def test_axes_without_names_are_z_y_x(tmp_path: Path, names: list[Any]) -> None:
    with opened(zarr3(tmp_path, RAW, names)) as volume:
        np.testing.assert_array_equal(volume.read(volume.box), RAW)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_unnamed_axes_with_channels_last_are_not_taken_for_channels_first(tmp_path: Path, channels: int) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.stack([RAW] * channels, axis=-1)
    with pytest.raises(BadData, match="have no names") as caught:
        open_source(tmp_path / "a.h5", "raw")
    assert str((4, 6, 8, channels)) in caught.value.found


def test_names_that_contradict_one_another_are_refused_with_both(tmp_path: Path) -> None:
    path = zarr3(tmp_path, RAW, ["x", "y", "z"])
    zarr.open_array(path).attrs["axis_names"] = ["z", "y", "x"]
    with pytest.raises(BadData, match="different axes") as caught:
        open_source(path)
    assert "'x', 'y', 'z'" in caught.value.found
    assert "'z', 'y', 'x'" in caught.value.found


def n5(folder: Path, stored: np.ndarray, **attributes: Any) -> Path:
    metadata = {"dimensions": stored.shape, "blockSize": stored.shape, "dataType": "uint8"}
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/a.n5/"}, "metadata": metadata}
    tensorstore.open(spec, create=True).result().write(stored).result()
    path = folder / "a.n5" / "attributes.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | attributes))
    return folder / "a.n5"


def test_axes_of_n5_are_named_x_first_by_n5_and_x_last_by_python(tmp_path: Path) -> None:
    stored = TWO.transpose(0, 3, 2, 1)
    for number, named in enumerate(({"axes": ["c", "x", "y", "z"]}, {"_ARRAY_DIMENSIONS": ["z", "y", "x", "c"]})):
        with open_source(n5(tmp_path / str(number), stored, **named)) as volume:
            np.testing.assert_array_equal(volume.read(volume.box), TWO)
    with pytest.raises(BadData, match="x last"):
        open_source(n5(tmp_path / "python", RAW.T, axes=["z", "y", "x"]))
    with pytest.raises(BadData, match="have no names"):
        open_source(n5(tmp_path / "unnamed", stored))


@pytest.mark.parametrize("value", ["{not JSON", {"x": "first"}, [[1], {}], "[1, 2"])
@pytest.mark.parametrize("key", ["axistags", "axes"])
def test_names_of_axes_that_cannot_be_understood_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=RAW, zarr_format=2)
    array.attrs[key] = value
    with pytest.raises(BadData, match=r"a\.zarr"):
        opened(tmp_path / "a.zarr")


def test_a_damaged_description_of_webknossos_is_refused(tmp_path: Path) -> None:
    path = webknossos(tmp_path, RAW, "zyx")
    (tmp_path / "a" / "datasource-properties.json").write_text('{"dataLayers": [{"mags": 3}]}')
    with pytest.raises(BadData, match="color"):
        opened(path)
