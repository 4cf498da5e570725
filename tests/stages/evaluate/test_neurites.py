"""The picture of the largest segments: which labels, what is in front; the lattice it is made from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.testing import made
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report import neurites
from lsdflow_evaluate.report.figures import colours_of_ids
from lsdflow_evaluate.report.neurites import front_view, largest_neurites
from lsdflow_runtime.io.volumes import Volume, open_volume


@pytest.fixture
def segmentation(make_experiment: Callable[..., Experiment]) -> Volume:
    return open_volume(made(make_experiment().layout, "segment"), SEGMENTATION.dataset)


def test_a_nearer_segment_hides_a_farther_one_and_all_others_are_clear() -> None:
    labels = np.zeros((6, 30, 30), np.uint64)
    labels[1, 5:15, 5:15] = 1  # small z: in front
    labels[4, 5:25, 5:25] = 2
    labels[0, 26:, 26:] = 3
    view = front_view(labels, np.array([1, 2], np.uint64), (5.0, 1.0, 2.0))
    assert (view.axis, view.pixel_size_nm) == ("z", (1.0, 2.0))
    for at, label in (((10, 10), 1), ((20, 20), 2)):
        seen = view.image[at][:3].astype(float)
        wanted = colours_of_ids(np.array([label], np.uint64))[0].astype(float)
        np.testing.assert_allclose(seen / seen.max(), wanted / wanted.max(), atol=0.02)
    assert view.image[10, 10, :3].max() > view.image[20, 20, :3].max(), "what is near is brighter"
    assert view.image[28, 28, 3] == view.image[0, 0, 3] == 0


def test_it_is_seen_along_the_axis_on_which_the_box_is_shortest_in_nm() -> None:
    labels = np.ones((10, 8, 20), np.uint64)
    ids = np.array([1], np.uint64)
    assert front_view(labels, ids, (1.0, 1.0, 1.0)).axis == "y"
    view = front_view(labels, ids, (1.0, 4.0, 1.0))
    assert (view.axis, view.image.shape) == ("z", (8, 20, 4))


def test_volumes_of_the_largest_are_those_of_their_voxels_whatever_the_lattice(segmentation: Volume) -> None:
    found = largest_neurites(segmentation)
    assert found is not None
    labels, counts = np.unique(segmentation.read(segmentation.box), return_counts=True)
    voxels = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    assert list(found.volumes_nm3) == sorted(found.volumes_nm3, reverse=True)
    assert 0 not in found.ids
    for label, nm3 in zip(found.ids, found.volumes_nm3, strict=True):
        assert nm3 == pytest.approx(voxels[label] * 20 * 10.5 * 10.5, rel=0.25)


def test_of_a_volume_too_large_the_box_in_its_middle_is_read(
    segmentation: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = largest_neurites(segmentation)
    assert whole is not None
    assert whole.part == ""
    monkeypatch.setattr(neurites, "MOST_EDGE_VOX", 10)
    part = largest_neurites(segmentation)
    assert part is not None
    assert part.part == str(Box((4, 7, 8), (10, 10, 10)))
    assert sum(part.volumes_nm3) < sum(whole.volumes_nm3)


@pytest.mark.parametrize("step", [(1, 1, 1), (2, 3, 5), (7, 1, 4)])
def test_a_strided_reading_by_pieces_is_the_strided_volume(step: tuple[int, int, int]) -> None:
    volume = np.arange(20 * 21 * 22, dtype=np.uint64).reshape(20, 21, 22)
    box = Box((1, 2, 3), (18, 17, 16))

    def read(piece: Box) -> np.ndarray:
        return volume[tuple(slice(b, e) for b, e in zip(piece.begin_vox, piece.end_vox, strict=True))]

    wanted = volume[1:19, 2:19, 3:19][:: step[0], :: step[1], :: step[2]]
    assert np.array_equal(strided(read, (5, 6, 7), box, step), wanted)
