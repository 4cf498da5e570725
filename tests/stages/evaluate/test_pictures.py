"""Pictures: the central planes, in the right place, rows and columns in the order z, y, x."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.geometry import Box
from lsdflow_evaluate.report.volumes import central_planes, picture_of, shown_box

BOX = Box((2, 4, 6), (10, 20, 30))


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
    assert shown_box(volumes) == boxes["segmentation"]
    assert shown_box({name: volumes[name] for name in ("raw", "truth")}) == boxes["raw"]
    with pytest.raises(MissingInput):
        shown_box({})
