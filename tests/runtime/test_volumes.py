"""Arrays of lsdflow: what was written is read, what was lost is an error, what is outside gets the chosen value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from lsdflow_contract.arrays import AFFS, FRAGMENTS, RAW
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.io.volumes import OutputArray, open_volume

GRID = Geometry((30.0, 6.0, 6.5), (60.0, 12.0, 0.0), (20, 17, 9))


def _array(tmp_path: Path, spec=RAW, zarr_format=3, write=(8, 8, 8), box=GRID.box) -> tuple[OutputArray, np.ndarray]:
    output = OutputArray(tmp_path / "v.zarr", spec, GRID, box, write, zarr_format)
    output.create({"key": "k"})
    leading = (spec.channels,) if spec.channels else ()
    values = np.random.default_rng(1).integers(0, 200, (*leading, *box.shape_vox)).astype(spec.dtype)
    output.open().write(box, values)
    return output, values


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("spec", [RAW, AFFS, FRAGMENTS])
def test_values_and_geometry_survive_both_formats(tmp_path: Path, spec, zarr_format: int) -> None:
    output, values = _array(tmp_path, spec, zarr_format)
    volume = open_volume(output.path, spec.dataset)
    assert np.array_equal(volume.read(volume.box), values)
    assert volume.geometry == GRID


def test_both_attribute_styles_are_written(tmp_path: Path) -> None:
    output, _ = _array(tmp_path, AFFS)
    attributes = dict(zarr.open_array(output.folder).attrs)
    assert attributes["resolution"] == attributes["voxel_size"] == [30, 6, 6.5]
    assert attributes["offset"] == [60, 12, 0]
    assert attributes["axis_names"] == ["c^", "z", "y", "x"]


def test_an_output_over_a_roi_is_addressed_by_the_targets_voxels(tmp_path: Path) -> None:
    box = Box((4, 8, 0), (8, 8, 8))
    output, values = _array(tmp_path, box=box)
    volume = open_volume(output.path, RAW.dataset, GRID)
    assert volume.box == box
    assert volume.geometry.offset_nm == (60 + 4 * 30, 12 + 8 * 6, 0)
    assert np.array_equal(volume.read(Box((5, 9, 1), (2, 2, 2))), values[1:3, 1:3, 1:3])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_deleted_chunk_is_an_error_and_never_zeros(tmp_path: Path, zarr_format: int) -> None:
    output, _values = _array(tmp_path, zarr_format=zarr_format)
    victim = next(
        p for p in output.folder.rglob("*") if p.is_file() and p.name in ("1", "0.1.0") and "c/0/1" in f"{p}" + "c/0/1"
    )
    victim.unlink()
    volume = open_volume(output.path, RAW.dataset)
    with pytest.raises(BadData, match="chunk that should exist"):
        volume.read(volume.box)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_flipped_bit_is_an_error(tmp_path: Path, zarr_format: int) -> None:
    output, _ = _array(tmp_path, zarr_format=zarr_format)
    chunk = max(
        (p for p in output.folder.rglob("*") if p.is_file() and p.suffix != ".json" and p.name[0] != "."),
        key=lambda p: p.stat().st_size,
    )
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(bytes(data))
    volume = open_volume(output.path, RAW.dataset)
    with pytest.raises(BadData):
        volume.read(volume.box)


def test_chunks_of_zeros_are_written_too(tmp_path: Path) -> None:
    output = OutputArray(tmp_path / "v.zarr", RAW, GRID, GRID.box, (8, 8, 8))
    output.create({"key": "k"})
    output.open().write(GRID.box, np.zeros(GRID.shape_vox, np.uint8))
    volume = open_volume(output.path, RAW.dataset)
    assert not volume.read(volume.box).any()


def test_outside_is_refused_zero_or_mirrored(tmp_path: Path) -> None:
    output, values = _array(tmp_path)
    volume = open_volume(output.path, RAW.dataset)
    box = volume.box.grow((3, 30, 2))
    with pytest.raises(BadData, match="leaves the array"):
        volume.read(box)
    pad = [(3, 3), (30, 30), (2, 2)]
    assert np.array_equal(volume.read(box, "zero"), np.pad(values, pad))
    assert np.array_equal(volume.read(box, "mirror"), np.pad(values, pad, mode="reflect"))


def test_a_box_wholly_outside_is_zero_or_mirrored(tmp_path: Path) -> None:
    output, values = _array(tmp_path)
    volume = open_volume(output.path, RAW.dataset)
    box = Box((-4, 0, 0), (3, 17, 9))
    assert not volume.read(box, "zero").any()
    assert np.array_equal(volume.read(box, "mirror"), values[4:1:-1])


@pytest.mark.proves("DAT-17")
def test_a_write_that_is_no_whole_chunk_is_refused(tmp_path: Path) -> None:
    output, _ = _array(tmp_path)
    with pytest.raises(ConfigError, match="whole chunks"):
        output.open().write(Box((0, 0, 0), (4, 8, 8)), np.zeros((4, 8, 8), np.uint8))


def test_a_missing_array_is_named_with_those_that_exist(tmp_path: Path) -> None:
    output, _ = _array(tmp_path)
    with pytest.raises(MissingInput, match="volumes/raw"):
        open_volume(output.path, "volumes/affs")


@pytest.mark.parametrize(
    "attributes",
    [{}, {"offset": [0, 0, 0]}, {"resolution": [8, 8, 8], "voxel_size": [10, 8, 8]}, {"resolution": [0, 8, 8]}],
)
def test_a_missing_or_conflicting_voxel_size_is_an_error_never_one(tmp_path: Path, attributes: dict) -> None:
    array = zarr.create_array(tmp_path / "v.zarr" / "a", shape=(4, 4, 4), dtype="u1", attributes=attributes)
    array[:] = 1
    with pytest.raises(BadData, match="voxel size"):
        open_volume(tmp_path / "v.zarr", "a")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_it_is_known_which_boxes_are_there(tmp_path: Path, zarr_format: int) -> None:
    output, _values = _array(tmp_path, zarr_format=zarr_format)
    volume = output.open()
    assert volume.holds(volume.box)
    (output.folder / ("1.0.0" if zarr_format == 2 else "c/1/0/0")).unlink()
    assert not volume.holds(volume.box)
    assert volume.holds(Box((0, 0, 0), (8, 17, 9)))


@pytest.mark.parametrize(("zarr_format", "named"), [(2, ("d0", "d1", "d2", "d3")), (3, ("c^", "z", "y", "x"))])
def test_axes_are_called_as_the_array_names_them(tmp_path: Path, zarr_format: int, named: tuple[str, ...]) -> None:
    output, _values = _array(tmp_path, AFFS, zarr_format)
    assert open_volume(output.path, AFFS.dataset).array_axes == named
    bare = zarr.create_array(tmp_path / "bare.zarr" / "a", shape=(2, 2, 2), dtype="u1", zarr_format=zarr_format)
    bare.attrs["resolution"] = [1, 1, 1]
    unnamed = open_volume(tmp_path / "bare.zarr", "a").array_axes
    assert unnamed == (("d0", "d1", "d2") if zarr_format == 2 else ("dim_0", "dim_1", "dim_2"))
