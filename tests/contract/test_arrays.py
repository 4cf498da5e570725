"""Quantisation, attributes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD, AFFS, RAW, affinities_to, dequantise_u8, quantise_u8
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.metadata import array_attributes, read_geometry, read_neighborhood

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


FAR = (*AFFINITY_NEIGHBORHOOD, (-4, 0, 0), (0, -9, 9))


def test_affinities_to_the_nearest_voxels_have_the_attributes_they_always_had() -> None:
    assert affinities_to(AFFINITY_NEIGHBORHOOD) is AFFS
    assert "neighborhood" not in array_attributes(AFFS, GEOMETRY, {})
    assert read_neighborhood({}, 3, "uint8", "here") == AFFINITY_NEIGHBORHOOD


def test_a_neighborhood_is_read_back_as_written() -> None:
    attributes = json.loads(json.dumps(array_attributes(affinities_to(FAR), GEOMETRY, {})))
    assert attributes["neighborhood"][3:] == [[-4, 0, 0], [0, -9, 9]]
    assert read_neighborhood(attributes, 5, "uint8", "here") == FAR


@pytest.mark.parametrize(
    ("named", "channels", "dtype", "message"),
    [
        (None, 10, "uint8", "not affinities"),
        (None, 3, "uint16", "not affinities"),
        (FAR, 4, "uint8", "not affinities"),
        (FAR[1:], 4, "uint8", "neighborhood"),
        ((*FAR, (0, 0, 0)), 6, "uint8", "neighborhood"),
        ((*FAR, (4, 0, 0)), 6, "uint8", "neighborhood"),
        ((*FAR, (1.5, 0, 0)), 6, "uint8", "no list of offsets"),
        ((*FAR, 3), 6, "uint8", "no list of offsets"),
        (5, 3, "uint8", "no list of offsets"),
    ],
)
def test_affinities_without_an_offset_for_each_channel_are_bad_data(
    named: Any, channels: int, dtype: str, message: str
) -> None:
    with pytest.raises(BadData, match=message) as caught:
        read_neighborhood({} if named is None else {"neighborhood": named}, channels, dtype, "a.zarr/affs")
    assert caught.value.where == "a.zarr/affs"
