"""Relabelling equals a dictionary look-up per voxel, and refuses ids that it cannot map."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_segment.relabel import relabel


def random_lut(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    fragments = np.unique(rng.integers(1, 2**63 - 1, count, dtype=np.uint64))
    return fragments, fragments[rng.integers(0, len(fragments), len(fragments))]


@pytest.mark.proves("SEG-04")
@given(st.integers(0, 100_000), st.integers(1, 300))
def test_every_voxel_gets_what_a_dictionary_gives(seed: int, count: int) -> None:
    fragments, segments = random_lut(seed, count)
    rng = np.random.default_rng(seed)
    volume = np.concatenate([[np.uint64(0)], fragments])[rng.integers(0, len(fragments) + 1, (3, 5, 4))]
    volume = volume.repeat(3, axis=2)
    entries = dict(zip(fragments.tolist(), segments.tolist(), strict=True)) | {0: 0}
    wanted = np.vectorize(entries.__getitem__, otypes=[np.uint64])(volume)
    np.testing.assert_array_equal(relabel(volume, fragments, segments), wanted)


def test_ids_that_share_low_bits_are_not_confused() -> None:
    fragments = (np.arange(1, 50, dtype=np.uint64) << np.uint64(12)) + np.uint64(5)
    segments = fragments + np.uint64(1)
    volume = np.tile(fragments, 3).reshape(3, 7, 7)
    np.testing.assert_array_equal(relabel(volume, fragments, segments), volume + np.uint64(1))


def test_background_stays_background() -> None:
    volume = np.zeros((2, 3, 4), np.uint64)
    none = np.zeros(0, np.uint64)
    np.testing.assert_array_equal(relabel(volume, none, none), volume)


def test_an_id_that_the_table_lacks_is_named_with_its_block_and_voxel() -> None:
    """The lineage wrote 0 there, in silence."""
    volume = np.array([[[1, 1], [1, 8]]], np.uint64)
    with pytest.raises(BadData, match="fragment 8 ") as refusal:
        relabel(volume, np.array([1], np.uint64), np.array([1], np.uint64), where="block 12")
    assert refusal.value.where == "block 12 voxel (0, 1, 1)"
    assert refusal.value.exit_code == 65


def test_a_view_that_is_not_contiguous_is_relabelled_in_place_order() -> None:
    fragments = np.array([1, 2, 3, 4], np.uint64)
    volume = np.arange(1, 5, dtype=np.uint64).reshape(1, 2, 2).transpose(2, 1, 0)
    np.testing.assert_array_equal(relabel(volume, fragments, fragments * np.uint64(10)), volume * np.uint64(10))
