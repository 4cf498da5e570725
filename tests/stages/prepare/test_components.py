"""Components counted slab by slab are those of the whole volume."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from lsdflow_contract.testing import voronoi_labels
from lsdflow_prepare.statistics import SlabComponents


def reference(ids: np.ndarray) -> dict[int, int]:
    """One label at a time, the whole volume at once."""
    everywhere = np.ones((3, 3, 3), bool)
    return {int(label): ndimage.label(ids == label, everywhere)[1] for label in np.unique(ids) if label}


def by_slabs(ids: np.ndarray, depth: int) -> dict[int, int]:
    counter = SlabComponents()
    for z in range(0, len(ids), depth):
        counter.add(ids[z : z + depth])
    return counter.per_label()


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("seed", range(3))
def test_any_slab_depth_gives_the_components_of_the_whole(depth: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    cells = voronoi_labels((12, 11, 13), 6, seed)
    ids = np.where(generator.random(cells.shape) < 0.2, cells, 0).astype(np.uint64)
    assert by_slabs(ids, depth) == reference(ids)


def test_a_u_shape_joined_in_a_later_slab_is_one_component() -> None:
    ids = np.zeros((4, 3, 5), np.uint64)
    ids[:, 1, 0] = ids[:, 1, 4] = ids[3, 1, :] = 2**60
    assert by_slabs(ids, 1) == {2**60: 1}
    ids[3, 1, 2] = 0
    assert by_slabs(ids, 1) == {2**60: 2}


def test_background_is_no_component() -> None:
    assert by_slabs(np.zeros((4, 3, 3), np.uint64), 2) == {}
