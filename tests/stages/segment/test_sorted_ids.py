"""Ids are found where a binary search finds them, however they are spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_segment.sorted_ids import SortedIds

ID = st.integers(1, 2**63 - 1) | st.integers(1, 50) | st.integers(10**12, 10**12 + 100)


@given(st.sets(ID, min_size=1, max_size=60), st.lists(ID, max_size=60))
def test_every_id_is_found_where_it_stands_and_no_other(ids: set[int], others: list[int]) -> None:
    listed = sorted(ids)
    wanted = [*others, *listed]
    positions = np.empty(len(wanted), np.int32)
    unknown = SortedIds(np.array(listed, np.uint64)).find(np.array(wanted, np.uint64), positions)
    assert positions.tolist() == [listed.index(i) if i in ids else -1 for i in wanted]
    assert unknown == sum(i not in ids for i in wanted)


@pytest.mark.parametrize("spread", [1, 3, 2**40])
def test_ids_in_crowds_and_far_apart(spread: int) -> None:
    crowd = np.arange(1, 5001, dtype=np.uint64)
    ids = np.unique(np.concatenate([crowd, crowd * np.uint64(spread) + np.uint64(2**50)]))
    positions = np.empty(len(ids), np.int64)
    assert SortedIds(ids).find(ids, positions) == 0
    assert positions.tolist() == list(range(len(ids)))
    assert SortedIds(ids).find(np.array([0, 2**62, 2**50 - 1], np.uint64), positions[:3]) == 3
