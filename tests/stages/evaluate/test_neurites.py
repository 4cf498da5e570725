"""The 3-D picture: which labels, seen from where, what is in front; the lattice it is made from."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import ndimage

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.testing import made
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report.neurites import (
    _enlarging,
    largest_labels,
    largest_neurites,
    lattice_step,
    picture_of_neurites,
    readable_box,
    surface_points,
    view_from,
)
from lsdflow_runtime.io.volumes import open_volume

RED, BLUE = (255, 0, 0), (0, 0, 255)
COLOURS = np.array([RED, BLUE], np.uint8)


def _seen(labels: np.ndarray, azimuth: float = 0.0, elevation: float = 0.0, spacing: tuple = (1.0, 1.0, 1.0)):
    ids = largest_labels(labels, 2)
    return picture_of_neurites(labels, spacing, ids, view_from(azimuth, elevation), COLOURS[: len(ids)])


def test_the_largest_labels_come_first_and_background_is_none() -> None:
    labels = np.array([[[0, 0, 0, 0, 0, 7, 7, 3, 3, 9]]], np.uint64)
    assert largest_labels(labels, 2) == ((3, 2), (7, 2))
    assert largest_labels(np.zeros((2, 2, 2), np.uint64), 5) == ()


def test_surface_points_are_those_with_a_neighbour_of_another_label() -> None:
    labels = np.zeros((5, 5, 5), np.uint64)
    labels[1:4, 1:4, 1:4] = 4
    wanted = {p for p in np.ndindex(5, 5, 5) if labels[p] == 4 and p != (2, 2, 2)}
    assert {tuple(p) for p in surface_points(labels, 4).tolist()} == wanted


@pytest.mark.parametrize(("azimuth", "elevation"), [(0, 0), (32, 24), (200, -60)])
def test_the_view_is_not_mirrored_and_its_directions_are_at_right_angles(azimuth: float, elevation: float) -> None:
    view = view_from(azimuth, elevation)
    right, up, away = (v[::-1] for v in (view.right, view.up, view.away))  # x, y, z
    assert np.allclose(np.cross(right, up), -away)
    assert np.allclose([np.linalg.norm(v) for v in (right, up, away)], 1)
    assert up[2] > 0 if abs(elevation) < 90 else True


def test_a_nearer_segment_hides_a_farther_one() -> None:
    labels = np.zeros((20, 30, 20), np.uint64)
    labels[4:16, 2:8, 4:16] = 1  # small y: in front
    labels[:, 20:28, :] = 2
    picture = _seen(labels).pixels
    row, column = picture.shape[0] // 2, picture.shape[1] // 2
    assert picture[row, column, 2] > picture[row, column, 0], "the smaller label is in front: blue, the second colour"
    behind = view_from(180)
    ids = largest_labels(labels, 2)
    turned = picture_of_neurites(labels, (1.0, 1.0, 1.0), ids, behind, COLOURS).pixels
    assert turned[row, column, 0] > turned[row, column, 2]


@pytest.mark.parametrize(("shape", "enlarge"), [((7, 11), 3), ((1, 5), 4), ((6, 2), 1)])
def test_a_map_is_enlarged_axis_by_axis_as_it_is_at_once(shape: tuple[int, int], enlarge: int) -> None:
    values = np.random.default_rng(1).random(shape)
    found = _enlarging(shape[0], enlarge) @ values @ _enlarging(shape[1], enlarge).T
    np.testing.assert_allclose(
        found, ndimage.zoom(values, enlarge, order=3, grid_mode=True, mode="nearest"), atol=1e-12
    )


def test_z_points_up_and_x_to_the_right_and_all_else_is_clear() -> None:
    labels = np.zeros((24, 12, 24), np.uint64)
    labels[18:, :, 18:] = 1
    alpha = _seen(labels).pixels[..., 3]
    rows, columns = np.nonzero(alpha > 128)
    assert rows.max() < 0.45 * alpha.shape[0]
    assert columns.min() > 0.55 * alpha.shape[1]


def test_volumes_of_the_largest_are_those_of_their_voxels_whatever_the_lattice(
    make_experiment: Callable[..., Experiment],
) -> None:
    volume = open_volume(made(make_experiment().layout, "segment"), SEGMENTATION.dataset)
    found = largest_neurites(volume)
    assert found is not None
    labels, counts = np.unique(volume.read(volume.box), return_counts=True)
    voxels = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    for label, nm3 in zip(found.ids, found.volumes_nm3, strict=True):
        assert nm3 == pytest.approx(voxels[label] * 20 * 10.5 * 10.5, rel=0.25)


def test_anisotropic_spacing_keeps_lengths() -> None:
    labels = np.ones((16, 80, 80), np.uint64)
    found = _seen(labels, spacing=(50.0, 10.0, 10.0))
    covered = found.pixels[..., 3] > 128
    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    assert np.ptp(rows) / np.ptp(columns) == pytest.approx(1.0, abs=0.12)


def test_corners_of_the_box_are_those_of_its_projection() -> None:
    found = _seen(np.ones((10, 20, 30), np.uint64))
    heights, widths = np.ptp(found.corners, axis=0)
    assert widths / heights == pytest.approx(3.0)
    assert found.farthest & 0b010, "the farthest corner has a large y"


def test_a_lattice_has_points_alike_far_apart_and_is_no_finer_than_wanted() -> None:
    assert lattice_step((100, 1000, 1000), (40.0, 4.0, 4.0), 200) == (1, 10, 10)
    assert lattice_step((96, 160, 160), (10.0, 10.0, 10.0), 200) == (1, 1, 1)
    assert lattice_step((2000, 2000, 2000), (8.0, 8.0, 8.0), 200) == (10, 10, 10)


@pytest.mark.parametrize("shape", [(96, 160, 160), (10_000, 900, 900), (50, 100_000, 100_000), (10**6, 2, 3)])
def test_of_a_volume_too_large_the_box_in_its_middle_is_read(shape: tuple[int, int, int]) -> None:
    whole = Box((5, 6, 7), shape)
    box = readable_box(whole, 512**3)
    assert whole.contains(box)
    assert math.prod(box.shape_vox) <= 512**3
    if math.prod(shape) <= 512**3:
        assert box == whole
    else:
        assert math.prod(box.shape_vox) > 512**3 // 3
        middles = [(2 * b + n) for b, n in zip(box.begin_vox, box.shape_vox, strict=True)]
        assert np.allclose(middles, [2 * b + n for b, n in zip(whole.begin_vox, shape, strict=True)], atol=1)


@pytest.mark.parametrize("step", [(1, 1, 1), (2, 3, 5), (7, 1, 4)])
def test_a_strided_reading_by_pieces_is_the_strided_volume(step: tuple[int, int, int]) -> None:
    volume = np.arange(20 * 21 * 22, dtype=np.uint64).reshape(20, 21, 22)
    box = Box((1, 2, 3), (18, 17, 16))

    def read(piece: Box) -> np.ndarray:
        return volume[tuple(slice(b, e) for b, e in zip(piece.begin_vox, piece.end_vox, strict=True))]

    wanted = volume[1:19, 2:19, 3:19][:: step[0], :: step[1], :: step[2]]
    assert np.array_equal(strided(read, (5, 6, 7), box, step), wanted)
