"""The synthetic EM volume: what a demo and a user's first network may rely on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from lsdflow_launch.synthetic.image import synthetic_em

SHAPE_VOX = (48, 96, 96)
VOXEL_SIZE_NM = (10.0, 10.0, 10.0)


@pytest.fixture(scope="module")
def block() -> tuple[np.ndarray, np.ndarray]:
    return synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, 7)


def _pieces(labels: np.ndarray) -> list[int]:
    """Number of 6-connected pieces of every label."""
    return [int(ndimage.label(labels == i)[1]) for i in range(1, int(labels.max()) + 1)]


def _boundary(labels: np.ndarray) -> np.ndarray:
    return ndimage.minimum_filter(labels.astype(int), 3) != ndimage.maximum_filter(labels.astype(int), 3)


def test_raw_and_labels_have_the_dtypes_and_shape_of_the_contract(block: tuple[np.ndarray, np.ndarray]) -> None:
    raw, labels = block
    assert (raw.dtype, labels.dtype) == (np.uint8, np.uint64)
    assert raw.shape == labels.shape == SHAPE_VOX


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(block: tuple[np.ndarray, np.ndarray]) -> None:
    raw, labels = synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, 7)
    np.testing.assert_array_equal(raw, block[0])
    np.testing.assert_array_equal(labels, block[1])
    other, _ = synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, 8)
    assert not np.array_equal(other, raw)


def test_labels_are_dense_numbered_without_gaps_and_each_in_one_piece(block: tuple[np.ndarray, np.ndarray]) -> None:
    _, labels = block
    assert np.array_equal(np.unique(labels), np.arange(1, int(labels.max()) + 1))
    assert set(_pieces(labels)) == {1}


def test_membranes_are_darker_than_cytoplasm(block: tuple[np.ndarray, np.ndarray]) -> None:
    raw, labels = block
    boundary = _boundary(labels)
    inside = ndimage.distance_transform_edt(~boundary) > 3
    assert raw[boundary].mean() < raw[inside].mean() - 25


def test_neurites_of_very_different_calibre_are_neighbours(block: tuple[np.ndarray, np.ndarray]) -> None:
    _, labels = block
    depth = ndimage.distance_transform_edt(~_boundary(labels))
    calibre = ndimage.maximum(depth, labels, np.arange(1, int(labels.max()) + 1))
    assert calibre.max() > 10
    assert np.count_nonzero(calibre < 7) >= 4


def test_grey_alone_does_not_distinguish_membrane_from_inside(block: tuple[np.ndarray, np.ndarray]) -> None:
    """Mitochondria and dark cells overlap with membranes: the best single threshold stays clearly wrong somewhere."""
    raw, labels = block
    boundary = _boundary(labels)
    deep = ndimage.distance_transform_edt(~boundary) > 4
    as_dark_as_a_membrane = raw[deep] < np.median(raw[boundary])
    assert 0.01 < as_dark_as_a_membrane.mean() < 0.35


def test_the_grey_scale_is_used_and_not_clipped(block: tuple[np.ndarray, np.ndarray]) -> None:
    raw, _ = block
    assert raw.std() > 20
    assert np.mean((raw == 0) | (raw == 255)) < 1e-3


def test_the_demo_block_holds_forty_to_ninety_neurites() -> None:
    _, labels = synthetic_em((128, 160, 160), VOXEL_SIZE_NM, 0)
    assert 40 <= int(labels.max()) <= 90


def test_anisotropic_voxels_have_the_same_tissue_at_another_sampling() -> None:
    raw, labels = synthetic_em((24, 64, 80), (32.5, 8.0, 8.0), 3)
    assert raw.shape == (24, 64, 80)
    assert set(_pieces(labels)) == {1}
    # The tissue has no long axis, so a voxel four times as long crosses more boundaries.
    changes = [np.mean(np.diff(labels.astype(int), axis=axis) != 0) for axis in (0, 1, 2)]
    assert changes[0] > 1.5 * changes[1]


@pytest.mark.parametrize(
    ("shape_vox", "voxel_size_nm"), [((4, 64, 64), (10.0, 10.0, 10.0)), ((64, 64, 64), (10.0, 0.0, 10.0))]
)
def test_a_block_that_makes_no_sense_is_refused(
    shape_vox: tuple[int, int, int], voxel_size_nm: tuple[float, float, float]
) -> None:
    with pytest.raises(ValueError, match="found"):
        synthetic_em(shape_vox, voxel_size_nm, 0)
