"""Ids are unique in the volume, contain their block, and fit 63 bits; pieces that do not touch get ids of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import label

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.testing import same_partition
from lsdflow_watershed.ids import check_id_range, global_ids, number_components


def test_a_fragment_that_cropping_cut_in_two_becomes_two() -> None:
    fragments = np.zeros((1, 1, 5), np.uint32)
    fragments[0, 0] = [9, 9, 0, 9, 4]
    numbers, count = number_components(fragments)
    assert count == 3
    assert numbers[0, 0].tolist() == [1, 1, 0, 2, 3]


def test_numbers_follow_the_first_voxel_of_each_piece() -> None:
    generator = np.random.default_rng(0)
    numbers, count = number_components(generator.integers(0, 4, (6, 7, 8)).astype(np.uint32))
    values, first = np.unique(numbers, return_index=True)
    order = values[values > 0][np.argsort(first[values > 0])]
    assert order.tolist() == list(range(1, count + 1))


@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_the_face_connected_components_of_each_label(seed: int) -> None:
    fragments = np.random.default_rng(seed).integers(0, 5, (5, 9, 9)).astype(np.uint32)
    wanted = np.zeros(fragments.shape, np.uint64)
    for value in range(1, 5):
        pieces, _ = label(fragments == value)
        wanted[pieces > 0] = pieces[pieces > 0] + wanted.max()
    numbers, count = number_components(fragments)
    assert same_partition(numbers, wanted)
    assert count == len(np.unique(wanted[wanted > 0]))


def test_nothing_is_no_fragment() -> None:
    numbers, count = number_components(np.zeros((2, 3, 4), np.uint32))
    assert count == 0
    assert numbers.dtype == np.uint64
    assert not numbers.any()


@given(block=st.integers(0, 2**20), voxels=st.integers(1, 2**30), number=st.integers(1, 2**30))
@settings(max_examples=50, deadline=None)
def test_an_id_encodes_its_block(block: int, voxels: int, number: int) -> None:
    number = min(number, voxels)
    (found,) = global_ids(np.array([number], np.uint64), block, voxels)
    assert (int(found) - 1) // voxels == block
    assert int(found) - block * voxels == number


def test_no_fragment_stays_zero_in_every_block() -> None:
    assert global_ids(np.array([0, 1], np.uint64), 5, 100).tolist() == [0, 501]


def test_ids_beyond_63_bits_are_refused_with_the_numbers() -> None:
    check_id_range(2**40, 2**22)
    with pytest.raises(ConfigError) as caught:
        check_id_range(2**41, 2**22)
    assert str(2**63) in caught.value.message()
    assert caught.value.exit_code == 78
