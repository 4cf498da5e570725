"""Segment sizes counted block by block equal those of the whole volume."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_contract.testing import voronoi_labels
from lsdflow_segment import sizes as module
from lsdflow_segment.sizes import SizeCount


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
