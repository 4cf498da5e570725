"""Raw of any type becomes the 8-bit values that networks see, or is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_prepare.greyscale import to_u8

LEVELS = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)


def test_u8_stays_as_it_is() -> None:
    np.testing.assert_array_equal(to_u8(LEVELS, None, "a").values, LEVELS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_of_an_8_bit_image_comes_back_exactly(dtype: type) -> None:
    np.testing.assert_array_equal(to_u8((LEVELS / 255).astype(dtype), None, "a").values, LEVELS)


@pytest.mark.proves("DAT-02")
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_float_in_0_1_is_nearest_grey_level(values: list[float]) -> None:
    grey = to_u8(np.array(values, np.float32).reshape(-1, 1, 1), None, "a").values
    assert np.abs(grey.ravel() / 255 - np.array(values)).max() <= 0.5 / 255 + 1e-9


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=30), st.integers(0, 60000), st.integers(1, 5000))
def test_u16_table_is_the_plain_formula(values: list[int], low: int, width: int) -> None:
    raw = np.array(values, np.uint16).reshape(-1, 1, 1)
    found = to_u8(raw, (low, low + width), "a")
    plain = [round(min(max((v - low) / width, 0), 1) * 255) for v in values]
    assert found.values.ravel().tolist() == plain
    assert found.clipped == sum(v < low or v > low + width for v in values)


def test_int16_and_large_floats_follow_the_given_range() -> None:
    raw = np.array([-1000, -500, 0, 1000], np.int16).reshape(1, 2, 2)
    assert to_u8(raw, (-1000, 1000), "a").values.ravel().tolist() == [0, 64, 128, 255]
    assert to_u8(raw.astype(np.float32), (-1000, 1000), "a").values.ravel().tolist() == [0, 64, 128, 255]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
def test_a_range_from_high_to_low_inverts_the_contrast(dtype: type) -> None:
    np.testing.assert_array_equal(to_u8(LEVELS.astype(dtype), (255, 0), "a").values, 255 - LEVELS)
    there, back = (to_u8(LEVELS.astype(dtype), given, "a") for given in ((50, 200), (200, 50)))
    np.testing.assert_array_equal(back.values[there.values % 255 == 0], 255 - there.values[there.values % 255 == 0])
    assert there.clipped == back.clipped == 50 + 55
    assert back.values.ravel()[[0, 50, 125, 200, 255]].tolist() == [255, 255, 128, 0, 0]


@pytest.mark.proves("DAT-02")
@pytest.mark.parametrize("raw", [np.array([[[3, 4095]]], np.uint16), np.array([[[3, 4095]]], np.float32)])
def test_unknown_range_is_refused_with_minimum_and_maximum(raw: np.ndarray) -> None:
    with pytest.raises(BadData) as caught:
        to_u8(raw, None, "a")
    assert "minimum 3, maximum 4095" in caught.value.found
    assert caught.value.fix == "give the range: raw_range = [3, 4095]"


@pytest.mark.proves("DAT-11", "TRB-04")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("raw_range", [None, (0.0, 1.0)])
def test_non_finite_raw_is_refused_with_count_and_first_voxel(bad: float, raw_range: tuple | None) -> None:
    raw = np.full((3, 4, 5), 0.5, np.float32)
    raw[1, 2, 3] = raw[2, 0, 0] = bad
    with pytest.raises(BadData) as caught:
        to_u8(raw, raw_range, "a")
    assert "2 voxels" in caught.value.found
    assert "(1, 2, 3)" in caught.value.found


@pytest.mark.parametrize("dtype", [np.bool_, np.complex64, "U1"])
def test_other_types_are_no_grey_values(dtype: object) -> None:
    with pytest.raises(BadData, match="not grey values"):
        to_u8(np.zeros((1, 1, 1), dtype), None, "a")
