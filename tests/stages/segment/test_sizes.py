"""Segment sizes counted block by block equal those of the whole volume; facts do not depend on what is held at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.testing import voronoi_labels
from lsdflow_segment import sizes as module
from lsdflow_segment.sizes import SizeCount, facts_of_roots, facts_of_voxels


@pytest.mark.proves("SEG-07")
@pytest.mark.parametrize("waiting_rows", [0, 1 << 20])
def test_sizes_of_blocks_equal_a_count_over_the_volume(waiting_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING_ROWS", waiting_rows)
    labels = voronoi_labels((12, 13, 14), 9, 1)
    labels[:2] = 0
    count = SizeCount()
    for z in range(0, 12, 5):
        for x in range(0, 14, 4):
            count.add(labels[z : z + 5, :, x : x + 4])
    ids, voxels = np.unique(labels, return_counts=True)
    sizes = count.sizes()
    assert dict(zip(sizes.ids.tolist(), sizes.voxels.tolist(), strict=True)) == {
        i: n for i, n in zip(ids.tolist(), voxels.tolist(), strict=True) if i
    }
    assert sizes.background_vox == int((labels == 0).sum())
    assert sizes.largest == (int(ids[1:][np.argmax(voxels[1:])]), int(voxels[1:].max()))


def test_the_histogram_counts_every_segment_once() -> None:
    count = SizeCount()
    count.add_counts(np.array([3, 4, 5, 6], np.uint64), np.array([1, 2, 3, 1024], np.int64))
    edges, segments = count.sizes().histogram()
    assert segments.sum() == 4
    assert dict(zip(edges[:-1].tolist(), segments.tolist(), strict=True)) == {
        1: 1, 2: 2, 4: 0, 8: 0, 16: 0, 32: 0, 64: 0, 128: 0, 256: 0, 512: 0, 1024: 1,
    }  # fmt: skip


def test_nothing_counted_is_no_segment() -> None:
    sizes = SizeCount().sizes()
    assert (len(sizes.ids), sizes.largest, sizes.background_vox) == (0, (0, 0), 0)


@pytest.mark.proves("SEG-07")
def test_facts_count_segments_and_the_largest() -> None:
    facts = facts_of_roots(0.5, np.array([0, 0, 2, 2, 2]), np.array([1, 2, 3, 4, 5], np.uint64))
    assert (facts.segments, facts.largest_vox) == (2, 12)


@given(st.integers(1, 3000), st.integers(0, 1000))
def test_the_entropy_does_not_depend_on_how_much_is_summed_at_once(segments: int, seed: int) -> None:
    voxels = np.random.default_rng(seed).integers(0, 10**6, segments).astype(np.uint64)
    share = voxels[voxels > 0] / voxels.sum()
    wanted = max(0.0, -float(np.sum(share * np.log2(share))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SUMMED_AT_ONCE", 128)
        assert facts_of_voxels(0.5, voxels).entropy_bits == wanted
    assert facts_of_voxels(0.5, voxels).segments == segments
