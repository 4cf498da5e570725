"""Nodes: exact sizes, and centres in nm of the target."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import center_of_mass

from lsdflow_contract.geometry import Geometry
from lsdflow_watershed.nodes import fragment_nodes

GRID = Geometry(voxel_size_nm=(40.0, 8.5, 8.0), offset_nm=(400.0, -17.0, 3.5), shape_vox=(100, 100, 100))


@pytest.mark.proves("WSD-09")
def test_centres_and_sizes_equal_the_slow_reference() -> None:
    numbers = np.random.default_rng(0).integers(0, 7, (9, 10, 11)).astype(np.uint64)
    nodes = fragment_nodes(numbers, 6, first_id=1001, begin_vox=(10, 20, 30), grid=GRID)
    assert nodes.id.tolist() == list(range(1001, 1007))
    for number in range(1, 7):
        center_vox = np.add(center_of_mass(numbers == number), (10, 20, 30))
        wanted_nm = np.array(GRID.offset_nm) + center_vox * np.array(GRID.voxel_size_nm)
        np.testing.assert_allclose(nodes.center_nm[number - 1], wanted_nm, rtol=1e-12)
        assert nodes.size_vox[number - 1] == (numbers == number).sum()


def test_a_fragment_of_one_voxel_is_at_that_voxel() -> None:
    nodes = fragment_nodes(np.ones((1, 1, 1), np.uint64), 1, first_id=1, begin_vox=(2, 3, 4), grid=GRID)
    assert nodes.center_nm.tolist() == [[480.0, 8.5, 35.5]]
    assert nodes.size_vox.tolist() == [1]


def test_an_empty_block_has_no_nodes() -> None:
    nodes = fragment_nodes(np.zeros((4, 4, 4), np.uint64), 0, first_id=65, begin_vox=(0, 0, 0), grid=GRID)
    assert len(nodes) == 0
    assert nodes.center_nm.shape == (0, 3)
