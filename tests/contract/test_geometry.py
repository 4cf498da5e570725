"""Boxes and lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Geometry, Lengths

coordinates = st.tuples(*[st.integers(-20, 20)] * 3)
shapes = st.tuples(*[st.integers(0, 12)] * 3)
boxes = st.builds(Box, coordinates, shapes)


def _voxels(box: Box) -> set[tuple[int, int, int]]:
    z, y, x = (range(b, e) for b, e in zip(box.begin_vox, box.end_vox, strict=True))
    return {(i, j, k) for i in z for j in y for k in x}


@given(boxes, boxes)
def test_intersection_is_the_set_of_common_voxels(a: Box, b: Box) -> None:
    assert _voxels(a.intersect(b)) == _voxels(a) & _voxels(b)
    assert a.contains(b) == (_voxels(b) <= _voxels(a))


@given(boxes, coordinates)
def test_a_moved_box_keeps_its_voxels(box: Box, by: tuple[int, int, int]) -> None:
    moved = {(z + by[0], y + by[1], x + by[2]) for z, y, x in _voxels(box)}
    assert _voxels(box.translate(by)) == moved


def test_the_hull_of_boxes_holds_each_of_them_tightly() -> None:
    one, other = Box((1, 2, 3), (4, 5, 6)), Box((-1, 4, 0), (2, 20, 4))
    assert Box.hull(iter([one])) == one
    assert Box.hull((one, other)) == Box.from_bounds((-1, 2, 0), (5, 24, 9))


def test_growing_adds_context_on_both_sides_and_negative_shrinks() -> None:
    box = Box((4, 4, 4), (8, 8, 8))
    assert box.grow((1, 2, 3)) == Box((3, 2, 1), (10, 12, 14))
    assert box.grow((-1, -1, -1)).grow((1, 1, 1)) == box
    assert box.grow((-5, 0, 0)).is_empty


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64 vox", (64, 64, 64)), ("2048 nm", (51.2, 256, 256)), ("40, 8, 8 nm", (1, 1, 1)), ("0.8um", (20, 100, 100))],
)
def test_lengths_are_read_with_their_unit(text: str, expected: tuple[float, float, float]) -> None:
    nm = Lengths.parse(text).to_nm((40, 8, 8))
    assert tuple(round(n / s, 6) for n, s in zip(nm, (40, 8, 8), strict=True)) == expected


@pytest.mark.parametrize("text", ["64", "64 parsec", "1,2 nm", "nm", "", "nan nm", "1 2 3", 64, None])
def test_a_length_without_a_known_unit_is_refused_with_the_allowed_forms(text: object) -> None:
    with pytest.raises(ValueError, match=r"unit|one number or three"):
        Lengths.parse(text)


@pytest.mark.proves("WSD-02")
def test_a_length_that_is_no_whole_number_of_voxels_names_field_and_nearest_fit() -> None:
    with pytest.raises(ConfigError, match="block_shape") as caught:
        Lengths.parse("2048 nm").to_vox((40, 8, 8), "block_shape")
    assert "2040, 2048, 2048" in caught.value.fix


def test_non_integer_voxel_sizes_keep_their_fraction() -> None:
    assert Lengths.parse("335, 33.5, 33.5 nm").to_vox((33.5, 33.5, 33.5), "x") == (10, 1, 1)


def test_an_offset_between_grids_is_counted_in_voxels_or_refused() -> None:
    grid = Geometry((9.8, 4.0, 4.0), (98.0, 0.0, 0.0), (10, 10, 10))
    inner = Geometry((9.8, 4.0, 4.0), (117.6, 8.0, 0.0), (2, 2, 2))
    assert inner.voxel_offset_from(grid, "inner") == (2, 2, 0)
    with pytest.raises(ConfigError, match="whole number"):
        Geometry((9.8, 4.0, 4.0), (100.0, 0.0, 0.0), (2, 2, 2)).voxel_offset_from(grid, "shifted")
    with pytest.raises(ConfigError, match="voxel sizes differ"):
        Geometry((8.0, 4.0, 4.0), (98.0, 0.0, 0.0), (2, 2, 2)).voxel_offset_from(grid, "other")


@given(boxes, boxes)
def test_a_box_without_another_is_cut_into_boxes_that_hold_each_other_voxel_once(a: Box, b: Box) -> None:
    parts = list(a.without(b))
    assert set().union(*map(_voxels, parts)) == _voxels(a) - _voxels(b)
    assert sum(part.size for part in parts) == len(_voxels(a) - _voxels(b))
