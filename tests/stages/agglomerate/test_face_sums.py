"""Rows of faces add up to what counting them one by one gives, in whatever order they come."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lsdflow_agglomerate.face_graph import sum_faces
from lsdflow_contract.graph import RagFaces

Row = tuple[int, int, int, int]
ROW = st.tuples(st.integers(1, 3), st.integers(4, 6), st.integers(0, 2) | st.just(255), st.integers(1, 9))


def faces_of(rows: list[Row]) -> RagFaces:
    u, v, affinity, count = np.array(rows, np.uint64).reshape(-1, 4).T
    return RagFaces.of(u, v, affinity.astype(np.uint8), count)


def listed(faces: RagFaces) -> list[Row]:
    columns = (faces.u, faces.v, faces.affinity, faces.count)
    return list(zip(*(c.tolist() for c in columns), strict=True))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(ROW, max_size=12), max_size=8))
def test_rows_in_any_order_and_number_add_up_and_come_out_ascending(parts: list[list[Row]]) -> None:
    wanted: Counter[tuple[int, int, int]] = Counter()
    for u, v, affinity, count in (row for part in parts for row in part):
        wanted[u, v, affinity] += count
    found = listed(sum_faces(faces_of(part) for part in parts))
    assert found == [(*row, count) for row, count in sorted(wanted.items())]


def test_columns_that_cannot_be_written_to_are_added_up_too() -> None:
    """Rows read from a file may be so."""
    part = faces_of([(1, 4, 7, 2), (1, 5, 7, 3)])
    for name in ("u", "v", "affinity", "count"):
        getattr(part, name).flags.writeable = False
    assert listed(sum_faces([part, part])) == [(1, 4, 7, 4), (1, 5, 7, 6)]
    assert listed(part) == [(1, 4, 7, 2), (1, 5, 7, 3)]


def test_the_parts_stay_as_they_are() -> None:
    part = faces_of([(1, 4, 7, 2)])
    assert listed(sum_faces([part])) == listed(part)
    sum_faces([part, part, part])
    assert listed(part) == [(1, 4, 7, 2)]
