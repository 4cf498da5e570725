"""Regions and labels are laid on the raw grid by world position, and refused when they do not fit."""

from __future__ import annotations

import pytest

from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box, Geometry, Lengths
from lsdflow_prepare.placement import lay_on, region_box, region_box_nm, require_cover

RAW = Geometry((40.0, 8.0, 8.0), (400.0, 80.0, 0.0), (100, 200, 300))


def region(offset: str, shape: str) -> Box:
    return region_box(Lengths.parse(offset), Lengths.parse(shape), RAW, "roi")


def test_offset_in_nm_is_a_world_position_and_in_vox_an_index() -> None:
    assert region("480, 96, 16 nm", "10 vox") == Box((2, 2, 2), (10, 10, 10))
    assert region("2 vox", "400, 80, 80 nm") == Box((2, 2, 2), (10, 10, 10))


def test_json_region_is_in_world_nm() -> None:
    assert region_box_nm((400.0, 80.0, 0.0), (4000.0, 1600.0, 2400.0), RAW, "a.json") == RAW.box


@pytest.mark.parametrize(
    ("offset", "shape", "text"),
    [
        ("0 vox", "0, 10, 10 vox", "empty"),
        ("95, 0, 0 vox", "10 vox", "leaves the volume"),
        ("0 nm", "400, 80, 80 nm", "intersection empty"),
        ("410, 80, 0 nm", "10 vox", "whole number of voxels"),
        ("0 vox", "405, 80, 80 nm", "whole number of voxels"),
    ],
)
def test_regions_that_do_not_fit_are_refused(offset: str, shape: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        region(offset, shape)


def labels(offset: tuple, shape: tuple, size: tuple = (40.0, 8.0, 8.0)) -> Geometry:
    return Geometry(size, offset, shape)


def test_labels_elsewhere_are_laid_on_the_raw_grid() -> None:
    placed = lay_on(labels((480.0, 96.0, 16.0), (10, 20, 30)), RAW, "ids", "raw")
    assert placed.box == Box((2, 2, 2), (10, 20, 30))


def test_offset_between_voxels_is_bad_data_with_the_nearest_that_fits() -> None:
    with pytest.raises(BadData) as caught:
        lay_on(labels((410.0, 80.0, 0.0), (10, 20, 30)), RAW, "ids", "raw")
    assert "nearest that fits" in caught.value.fix


def test_other_voxel_size_is_bad_data_naming_both() -> None:
    with pytest.raises(BadData) as caught:
        lay_on(labels((400.0, 80.0, 0.0), (10, 20, 30), (40.0, 4.0, 4.0)), RAW, "ids", "raw")
    assert "(40.0, 4.0, 4.0)" in caught.value.found
    assert "(40.0, 8.0, 8.0)" in caught.value.wanted


@pytest.mark.proves("DAT-05")
@pytest.mark.parametrize(("begin", "shape"), [((0, 0, 0), (100, 200, 299)), ((1, 0, 0), (100, 200, 300)),
                                               ((-1, 0, 0), (102, 200, 300))])  # fmt: skip
def test_labels_that_do_not_cover_exactly_raw_are_refused_naming_both_shapes(begin: tuple, shape: tuple) -> None:
    placed = lay_on(RAW, RAW, "ids", "raw")._replace(box=Box(begin, shape))
    with pytest.raises(BadData) as caught:
        require_cover(placed, RAW.box, RAW.box, "raw", pad_labels=False)
    assert str(shape) in caught.value.found
    assert "(100, 200, 300)" in caught.value.wanted


def test_labels_of_the_shape_of_raw_are_not_advised_to_be_padded() -> None:
    """A TIFF begins at 0 nm: cut or padded to where it meets raw, its labels would lie at the wrong voxels."""
    placed = lay_on(labels((0.0, 0.0, 0.0), RAW.shape_vox), RAW, "ids", "raw")
    with pytest.raises(BadData) as caught:
        require_cover(placed, RAW.box, RAW.box, "raw", pad_labels=False)
    assert "pad_labels" not in caught.value.fix
    assert "offset" in caught.value.fix


def test_a_region_needs_labels_only_there() -> None:
    placed = lay_on(RAW, RAW, "ids", "raw")._replace(box=Box((10, 10, 10), (50, 50, 50)))
    wanted = Box((20, 20, 20), (10, 10, 10))
    assert require_cover(placed, wanted, RAW.box, "raw", pad_labels=False) == wanted


def test_padded_labels_cover_their_part_but_never_nothing() -> None:
    placed = lay_on(RAW, RAW, "ids", "raw")._replace(box=Box((90, 0, 0), (50, 200, 300)))
    assert require_cover(placed, RAW.box, RAW.box, "raw", pad_labels=True) == Box((90, 0, 0), (10, 200, 300))
    away = placed._replace(box=Box((100, 0, 0), (10, 10, 10)))
    with pytest.raises(BadData, match="offset in the metadata"):
        require_cover(away, RAW.box, RAW.box, "raw", pad_labels=True)
