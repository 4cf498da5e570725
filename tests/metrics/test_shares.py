"""Shares of objects in the VOI: they add up to it, and say who is to blame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import ZERO_POLICIES, ZeroPolicy, score
from lsdflow_metrics.shares import merge_shares, split_shares

labels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40)


@given(pairs=labels, zeros=st.sampled_from(ZERO_POLICIES))
def test_shares_add_up_to_the_voi(pairs: list[tuple[int, int]], zeros: ZeroPolicy) -> None:
    segments, truth = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    table = contingency(segments, truth)
    if not ((truth > 0) & ((segments > 0) | (zeros != "ignore"))).any():
        return
    whole = score(table, zeros)
    splits, merges = split_shares(table, zeros), merge_shares(table, zeros)
    assert splits.bits.sum() == pytest.approx(whole.voi_split, abs=1e-12)
    assert merges.bits.sum() == pytest.approx(whole.voi_merge, abs=1e-12)
    assert splits.voxels.sum() == whole.voxels


def test_the_object_in_two_halves_has_all_of_the_split_and_a_clean_one_none() -> None:
    segments = np.array([1, 1, 2, 2, 3, 3, 3, 3], np.uint64)
    truth = np.array([7, 7, 7, 7, 8, 8, 8, 8], np.uint64)
    splits = split_shares(contingency(segments, truth))
    assert (splits.ids.tolist(), splits.voxels.tolist(), splits.bits.tolist()) == ([7, 8], [4, 4], [0.5, 0.0])
    assert merge_shares(contingency(segments, truth)).bits.tolist() == [0.0, 0.0, 0.0]
    assert merge_shares(contingency(truth, segments)).bits.tolist() == [0.5, 0.0]
