"""Fast boundaries and ids against gunpowder's own node and np.unique."""

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lsdflow_contract.testing import voronoi_labels  # noqa: E402
from lsdflow_training.targets.boundaries import compact_ids, grow_boundary  # noqa: E402


def by_gunpowder(labels: np.ndarray, mask: np.ndarray, only_xy: bool) -> np.ndarray:
    grown = labels.copy()
    gp.GrowBoundary(None)._GrowBoundary__grow(grown, mask, only_xy)
    return grown


@pytest.mark.proves("TLS-09")
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), only_xy=st.booleans(), masked=st.booleans())
def test_boundaries_are_those_of_gunpowder_where_labels_are_known(seed: int, only_xy: bool, masked: bool) -> None:
    labels = voronoi_labels((6, 9, 10), 5, seed)
    labels[labels == 2] = 0
    mask = np.ones(labels.shape, np.uint8)
    if masked:
        mask[:, 3:6, 2:5] = 0
    known = mask > 0
    grown = grow_boundary(labels, mask, 1, only_xy)
    np.testing.assert_array_equal(grown[known], by_gunpowder(labels, mask, only_xy)[known])
    np.testing.assert_array_equal(grown[~known], labels[~known])


@pytest.mark.proves("TLS-09")
def test_a_label_does_not_shrink_towards_unknown_or_the_border() -> None:
    labels = np.ones((5, 5, 5), np.uint64)
    labels[3:] = 2
    mask = np.ones(labels.shape, np.uint8)
    mask[3:] = 0
    np.testing.assert_array_equal(grow_boundary(labels, mask, 1, False), labels)
    assert (grow_boundary(labels, None, 1, False)[2:4] == 0).all()


def test_compact_ids_keep_the_partition_of_ids_that_float64_and_int32_would_merge() -> None:
    big = np.uint64(2**60)
    labels = np.array([[[0, big, big + np.uint64(1)], [5, 5 + 2**32, 5]]], np.uint64)
    np.testing.assert_array_equal(compact_ids(labels), [[[0, 3, 4], [1, 2, 1]]])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_compact_ids_are_those_of_unique(ids: list[int]) -> None:
    labels = np.array(ids, np.uint64).reshape(1, 1, -1)
    unique, inverse = np.unique(labels, return_inverse=True)
    expected = inverse.reshape(labels.shape) + (0 if unique[0] == 0 else 1)
    np.testing.assert_array_equal(compact_ids(labels), expected)
