"""Pictures of the report: the right planes, colours that stay, outlines where labels meet, true scale bars."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.geometry import Box
from lsdflow_evaluate.report.data import Picture
from lsdflow_evaluate.report.figures import (
    LONGEST_SIDE_PX,
    colours_of_ids,
    figure_of,
    outlines,
    scale_bar,
    three_channels,
)
from lsdflow_evaluate.report.volumes import central_planes, picture_of, pictured_box

BOX = Box((2, 4, 6), (10, 20, 30))


def _pixels(uri: str) -> np.ndarray:
    head, body = uri.split(",", 1)
    assert head == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    return np.asarray(image.convert("RGBA") if image.mode == "P" else image)


def _picture(image: np.ndarray, kind: Any, pixel_size_nm: tuple[float, float] = (10.0, 10.0)) -> Picture:
    return Picture("layer", kind, "z", 5, image, pixel_size_nm)


def test_the_colour_of_an_id_never_changes() -> None:
    """Written down once: another version of the code must show the same neuron in the same colour."""
    ids = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
    expected = [[0, 0, 0], [110, 222, 130], [50, 191, 55], [189, 44, 85], [187, 191, 65]]
    np.testing.assert_array_equal(colours_of_ids(ids), expected)


def test_the_colour_of_an_id_does_not_depend_on_the_other_ids() -> None:
    ids = np.arange(1, 300, dtype=np.uint64)
    alone = np.concatenate([colours_of_ids(ids[i : i + 1]) for i in range(ids.size)])
    np.testing.assert_array_equal(colours_of_ids(ids), alone)


def test_neighbouring_ids_differ_in_colour_and_none_is_black() -> None:
    colours = colours_of_ids(np.arange(1, 500, dtype=np.uint64)).astype(int)
    assert colours.max(axis=1).min() > 150
    assert np.mean(np.abs(np.diff(colours, axis=0)).sum(axis=1) > 40) > 0.9


def test_outlines_are_on_both_sides_of_every_border_and_nowhere_else() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (9, 11)).astype(np.uint64)
    slow = np.zeros(labels.shape, bool)
    for r, c in np.ndindex(labels.shape):
        beside = [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
        slow[r, c] = any(0 <= i < 9 and 0 <= j < 11 and labels[i, j] != labels[r, c] for i, j in beside)
    np.testing.assert_array_equal(outlines(labels), slow)


def test_labels_are_half_transparent_with_opaque_outlines_and_background_is_not_painted() -> None:
    labels = np.zeros((40, 40), np.uint64)
    labels[10:30, 10:30] = 7
    rgba = _pixels(figure_of(_picture(labels, "labels")).uri)
    enlarged = rgba.shape[0] // 40
    assert rgba[0, 0, 3] == 0
    assert 0 < rgba[20 * enlarged, 20 * enlarged, 3] < 255
    assert rgba[10 * enlarged, 20 * enlarged, 3] == 255
    np.testing.assert_array_equal(rgba[20 * enlarged, 20 * enlarged, :3], colours_of_ids(np.array([7], np.uint64))[0])


def test_grey_pictures_keep_their_grey_values() -> None:
    image = np.arange(200, dtype=np.uint8).reshape(10, 20)
    np.testing.assert_array_equal(_pixels(figure_of(_picture(image, "grey")).uri), image)


def test_large_slices_are_reduced_and_keep_their_shape_and_scale() -> None:
    figure = figure_of(_picture(np.zeros((1500, 3000), np.uint8), "grey"))
    assert _pixels(figure.uri).shape == (LONGEST_SIDE_PX // 2, LONGEST_SIDE_PX)
    assert figure.aspect == pytest.approx(2.0)
    assert figure.bar == scale_bar(30000.0)


def test_anisotropic_pixels_widen_the_picture_not_the_pixels() -> None:
    figure = figure_of(_picture(np.zeros((20, 100), np.uint8), "grey", (32.5, 6.5)))
    assert figure.aspect == pytest.approx((100 * 6.5) / (20 * 32.5))


@pytest.mark.parametrize("width_nm", [37.0, 100.0, 649.35, 1600.0, 3333.3, 6667.0, 20480.0, 1.3e6])
def test_the_scale_bar_has_a_round_length_and_its_true_share_of_the_width(width_nm: float) -> None:
    bar = scale_bar(width_nm)
    assert bar.width_percent / 100.0 * width_nm == pytest.approx(bar.length_nm)
    assert 12.0 - 1e-6 <= bar.width_percent <= 30.0 + 1e-6
    assert f"{bar.length_nm:e}"[0] in "125"


def test_the_scale_bar_names_its_unit() -> None:
    assert scale_bar(1600.0).text == "200 nm"
    assert scale_bar(1600.0).width_percent == pytest.approx(12.5)
    assert scale_bar(8000.0).text == "2 µm"


def test_three_channels_become_red_green_and_blue_in_their_order() -> None:
    values = np.arange(10 * 2 * 3, dtype=np.uint8).reshape(10, 2, 3)
    for colour in (three_channels(values), three_channels(values[:3])):
        for channel in range(3):
            np.testing.assert_array_equal(colour[..., channel], values[channel])


def test_planes_go_through_the_middle_and_are_cut_to_the_edge() -> None:
    planes = {p.axis: p for p in central_planes(BOX, 12)}
    assert {axis: p.index_vox for axis, p in planes.items()} == {"z": 7, "y": 14, "x": 21}
    assert planes["z"].box == Box((7, 8, 15), (1, 12, 12))
    assert planes["x"].box == Box((2, 8, 21), (10, 12, 1))
    assert all(BOX.contains(p.box) for p in planes.values())


def test_each_layer_becomes_its_kind_with_the_right_pixel_size() -> None:
    sizes = {"z": (2.0, 3.0), "y": (1.0, 3.0), "x": (1.0, 2.0)}
    for plane in central_planes(BOX, 100):
        shape = plane.box.shape_vox
        rows, columns = (n for n in shape if n != 1)
        raw = picture_of("raw", np.arange(np.prod(shape), dtype=np.uint8).reshape(shape), plane, (1.0, 2.0, 3.0))
        affs = picture_of("affinities", np.full((3, *shape), 9, np.uint8), plane, (1.0, 2.0, 3.0))
        lsds = picture_of("lsds", np.full((10, *shape), 9, np.uint8), plane, (1.0, 2.0, 3.0))
        labels = picture_of("segmentation", np.full(shape, 2**60, np.uint64), plane, (1.0, 2.0, 3.0))
        assert (raw.kind, affs.kind, lsds.kind, labels.kind) == ("grey", "colour", "colour", "labels")
        assert raw.image.shape == labels.image.shape == (rows, columns)
        assert affs.image.shape == lsds.image.shape == (rows, columns, 3)
        assert raw.pixel_size_nm == sizes[plane.axis]
        assert labels.image.dtype == np.uint64
        assert raw.image[0, 1] == raw.image.ravel()[1]


def test_pictures_are_the_middle_of_the_most_finished_volume() -> None:
    boxes = {name: Box((n, 0, 0), (9, 9, 9)) for n, name in enumerate(("raw", "truth", "fragments", "segmentation"))}
    volumes: Any = {name: SimpleNamespace(box=box) for name, box in boxes.items()}
    assert pictured_box(volumes) == boxes["segmentation"]
    assert pictured_box({name: volumes[name] for name in ("raw", "truth")}) == boxes["raw"]
    with pytest.raises(MissingInput):
        pictured_box({})


@pytest.mark.parametrize(
    ("image", "kind", "pixel_size_nm"),
    [
        (np.zeros((3, 4, 3), np.uint8), "grey", (1.0, 1.0)),
        (np.zeros((3, 4), np.uint8), "colour", (1.0, 1.0)),
        (np.zeros((0, 4), np.uint8), "grey", (1.0, 1.0)),
        (np.zeros((3, 4), np.uint8), "grey", (0.0, 1.0)),
    ],
)
def test_a_picture_whose_image_or_pixel_size_does_not_fit_its_kind_is_refused(
    image: np.ndarray, kind: str, pixel_size_nm: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match="picture of layer"):
        figure_of(_picture(image, kind, pixel_size_nm))
