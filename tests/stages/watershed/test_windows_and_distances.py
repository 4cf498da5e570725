"""Distances and window maxima are those of scipy, whatever the shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt, maximum_filter

from lsdflow_watershed.distance import squared_distance_transform
from lsdflow_watershed.seeds import window_maximum

SHAPE = st.tuples(st.integers(1, 14), st.integers(1, 20), st.integers(1, 40))


@given(SHAPE, st.integers(0, 2**32), st.sampled_from([0.02, 0.3, 0.9, 0.999]))
def test_squared_distances_are_exact(shape: tuple[int, int, int], seed: int, share_inside: float) -> None:
    generator = np.random.default_rng(seed)
    inside = generator.random(shape) < share_inside
    inside.flat[generator.integers(inside.size)] = False
    wanted = np.rint(distance_transform_edt(inside) ** 2).astype(np.int32)
    assert np.array_equal(squared_distance_transform(inside), wanted)


@pytest.mark.parametrize("shape", [(1, 1, 300), (300, 1, 1), (5, 400, 3)])
def test_one_voxel_outside_is_seen_from_afar(shape: tuple[int, int, int]) -> None:
    inside = np.ones(shape, bool)
    inside[0, 0, 0] = False
    wanted = sum(axis**2 for axis in np.indices(shape))
    assert np.array_equal(squared_distance_transform(inside), wanted)


def test_what_is_not_contiguous_gives_the_same() -> None:
    inside = np.random.default_rng(0).random((8, 12, 16)) < 0.8
    view = np.asfortranarray(inside)[::-1, :, ::2]
    assert np.array_equal(squared_distance_transform(view), squared_distance_transform(view.copy()))
    values = np.random.default_rng(1).integers(0, 99, (8, 12, 16)).astype(np.int32)
    assert np.array_equal(window_maximum(values[:, ::-1], (3, 4, 5)), maximum_filter(values[:, ::-1], (3, 4, 5)))


@given(SHAPE, st.integers(0, 2**32), st.tuples(*[st.integers(1, 12)] * 3))
def test_window_maxima_are_those_of_scipy(shape: tuple[int, int, int], seed: int, size: tuple[int, int, int]) -> None:
    values = np.random.default_rng(seed).integers(0, 50, shape).astype(np.int32)
    # scipy reflects at the faces, more than once in a volume smaller than the window: never a value that is not there.
    assert np.array_equal(window_maximum(values, size), maximum_filter(values, size))


def test_columns_beyond_one_tile_are_done_too() -> None:
    values = np.random.default_rng(0).integers(0, 9, (20, 37, 41)).astype(np.int32)
    assert np.array_equal(window_maximum(values, (10, 10, 10)), maximum_filter(values, 10))
