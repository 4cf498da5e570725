"""Reading beyond the edge: against numpy's own padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsdflow_contract.geometry import Box
from lsdflow_predict.mirror import mirror_indices, read_around

VOLUME = np.random.default_rng(0).integers(1, 255, (4, 7, 5)).astype(np.uint8)


def _reader(seen):
    def read(box):
        assert Box((0, 0, 0), VOLUME.shape).contains(box)
        seen.append(box)
        return VOLUME[box.slices()]

    return read


@given(st.tuples(*[st.integers(-20, 20)] * 3), st.tuples(*[st.integers(1, 20)] * 3))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize(("outside", "mode"), [("mirror", "reflect"), ("zero", "constant")])
def test_reading_around_equals_a_padded_volume(outside, mode, begin, shape):
    padded = np.pad(VOLUME, 45, mode=mode)
    seen = []
    found = read_around(_reader(seen), VOLUME.shape, Box(begin, shape), outside)
    z, y, x = (slice(b + 45, b + 45 + s) for b, s in zip(begin, shape, strict=True))
    assert np.array_equal(found, padded[z, y, x])
    assert len(seen) <= 1


def test_a_volume_one_voxel_thick_mirrors_to_itself():
    assert mirror_indices(-3, 4, 1).tolist() == [0] * 7


def test_mirroring_does_not_repeat_the_edge():
    assert mirror_indices(-3, 7, 4).tolist() == [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]
