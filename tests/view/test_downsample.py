"""Binning, compared with a loop over bins; and the places of the levels of a pyramid."""

from __future__ import annotations

import numpy as np
import pytest
from slow_levels import slow_level, slow_mean, slow_mode

from lsdflow_contract.geometry import Box, Geometry
from lsdflow_view.export.levels import (
    centre_translation_nm,
    coarser_values,
    level_count,
    mean_of_bins,
    mode_of_bins,
    pyramid,
    whole_bins,
)


@pytest.mark.parametrize("step", [(2, 2, 2), (1, 2, 2), (2, 1, 2)])
@pytest.mark.parametrize("begin", [(0, 0, 0), (3, 5, 8)])
def test_a_level_made_in_pieces_is_that_of_a_loop_over_bins(step: tuple, begin: tuple) -> None:
    generator = np.random.default_rng(1)
    levels = pyramid(tuple(10.0 if s == 2 else 30.0 for s in step), Box(begin, (7, 6, 9)), 2)
    assert levels[1].step == step
    for kind, high, fast, slow in (
        (np.uint8, 256, mean_of_bins, slow_mean),
        (np.uint64, 3, mode_of_bins, slow_mode),
    ):
        values = generator.integers(0, high, (7, 6, 9)).astype(kind)
        made = coarser_values(lambda box, v=values: v[box.slices(begin)], levels[1].box, levels[1], levels[0], fast)
        np.testing.assert_array_equal(made, slow_level(values, begin, step, slow))
        assert made.dtype == kind


def test_of_equally_frequent_labels_the_lowest_stays_and_ids_of_64_bits_are_exact() -> None:
    high = 2**63 - 1
    bin_ = np.array([high, high - 1, high, high - 1, 5, 5, 0, 0], np.uint64).reshape(2, 2, 2)
    assert mode_of_bins(bin_, (2, 2, 2)).item() == 0
    assert mode_of_bins(np.array([high, high - 1, high, 3, high - 1, high, 4, 4], np.uint64).reshape(2, 2, 2),
                        (2, 2, 2)).item() == high  # fmt: skip


def test_means_keep_their_channels_apart() -> None:
    values = np.stack([np.full((2, 2, 2), 3, np.uint8), np.arange(8, dtype=np.uint8).reshape(2, 2, 2)])
    assert mean_of_bins(values, (2, 2, 2)).ravel().tolist() == [3, 4]  # 3.5 is rounded up


def test_a_cut_bin_is_filled_by_its_own_voxels() -> None:
    values = np.array([[[1, 9]]], np.uint8)
    assert whole_bins(values, (0, 1, 1), (1, 0, 1)).shape == (2, 2, 4)
    assert mean_of_bins(whole_bins(values, (0, 0, 1), (0, 0, 1)), (1, 1, 2)).ravel().tolist() == [1, 9]


def test_thick_sections_are_halved_last_and_the_last_level_fits_on_a_screen() -> None:
    levels = pyramid((40.0, 8.0, 8.0), Box((0, 0, 0), (100, 1000, 900)), 5)
    assert [level.voxel_size_nm for level in levels] == [
        (40.0, 8.0, 8.0), (40.0, 16.0, 16.0), (40.0, 32.0, 32.0), (80.0, 64.0, 64.0), (160.0, 128.0, 128.0)
    ]  # fmt: skip
    assert [level.box.shape_vox for level in levels][-1] == (25, 63, 57)
    assert level_count((40.0, 8.0, 8.0), levels[0].box) == 5


def test_an_axis_that_is_twice_as_thick_waits_until_the_others_are_as_thick() -> None:
    levels = pyramid((20.0, 10.0, 10.0), Box((0, 0, 0), (64, 64, 64)), 3)
    assert [level.voxel_size_nm for level in levels] == [(20.0, 10.0, 10.0), (20.0, 20.0, 20.0), (40.0, 40.0, 40.0)]


def test_the_centre_of_a_coarser_voxel_is_the_centre_of_the_voxels_it_is_made_of() -> None:
    base = Geometry((40.0, 8.0, 8.0), (100.0, 16.0, 0.0), (20, 64, 64))
    for level in pyramid(base.voxel_size_nm, base.box, 4):
        per_axis = [round(s / b) for s, b in zip(level.voxel_size_nm, base.voxel_size_nm, strict=True)]
        centres = [
            o + np.mean(np.arange(n)) * b for o, n, b in zip(base.offset_nm, per_axis, base.voxel_size_nm, strict=True)
        ]
        assert centre_translation_nm(base, level) == pytest.approx(centres)
