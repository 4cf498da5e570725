"""Quantisation, attributes."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_contract.arrays import AFFS, RAW, dequantise_u8, quantise_u8
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.metadata import array_attributes, read_geometry

GEOMETRY = Geometry((33.5, 5.0, 5.0), (67.0, 10.0, 0.0), (4, 4, 4))


def test_grey_levels_survive_the_round_trip_through_floats() -> None:
    grey = np.arange(256, dtype=np.uint8)
    assert np.array_equal(quantise_u8(dequantise_u8(grey)), grey)


def test_floats_outside_zero_one_are_clipped() -> None:
    assert quantise_u8(np.array([-0.5, 0.0, 0.999, 1.0, 1.5])).tolist() == [0, 0, 254, 255, 255]


@pytest.mark.parametrize("spec", [RAW, AFFS])
def test_attributes_are_read_back_as_written(spec) -> None:
    attributes = array_attributes(spec, GEOMETRY, {"key": "k"})
    assert read_geometry(attributes, (4, 4, 4), "here") == GEOMETRY


def test_units_of_micrometres_become_nm() -> None:
    geometry = read_geometry({"voxel_size": [0.04, 0.008, 0.008], "units": ["um"] * 3}, (1, 1, 1), "here")
    assert geometry.voxel_size_nm == pytest.approx((40, 8, 8))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "no voxel size"),
        ({"resolution": [8, 8, 8], "voxel_size": [8, 8, 4]}, "different voxel sizes"),
        ({"resolution": [8, 8]}, "not three numbers"),
        ({"resolution": ["a", 8, 8]}, "not three numbers"),
        ({"resolution": [8, 8, -8]}, "not positive"),
        ({"resolution": [8, 8, 8], "units": ["parsec"]}, "unknown unit"),
        ({"resolution": [8, 8, 8], "units": ["nm", "um", "nm"]}, "unknown unit"),
        ({"resolution": [8, 8, 8], "offset": [0, float("nan"), 0]}, "not three numbers"),
    ],
)
def test_wrong_attributes_are_bad_data_naming_the_place(attributes: dict, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        read_geometry(attributes, (1, 1, 1), "a.zarr/raw")
    assert caught.value.where == "a.zarr/raw"
    assert caught.value.exit_code == 65
