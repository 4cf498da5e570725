"""The arrays under agglomeration on the graph: histograms are added, pairs are found, also in a rebuilt table."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lsdflow_agglomerate.region_arrays import (
    NONE,
    Edges,
    find_edge,
    histograms_of,
    new_edges,
    new_table,
    put_edge,
    spliced,
)


def edges_with(histograms: list[dict[int, int]], ends: list[int]) -> Edges:
    rows = [sorted(h.items()) for h in histograms]
    first = np.cumsum([0, *(len(r) for r in rows)]).astype(np.int64)
    flat = np.array([row for r in rows for row in r], np.int64).reshape(-1, 2)
    origin = np.arange(len(rows), dtype=np.int64)
    return new_edges(np.array(ends, np.int64), origin, first, flat[:, 0].astype(np.uint8), flat[:, 1])


@pytest.mark.parametrize("seed", range(8))
def test_spliced_histograms_are_the_sum(seed: int) -> None:
    generator = np.random.default_rng(seed)
    one, other = (
        {int(a): int(generator.integers(1, 9)) for a in generator.integers(0, 12, int(generator.integers(1, 12)))}
        for _ in range(2)
    )
    edges = edges_with([one, other], [0, 1, 0, 1])
    edges.head[0] = spliced(edges, edges.head[0], edges.head[1])
    first, rows = histograms_of(edges, np.array([0]))
    assert first.tolist() == [0, len(rows)]
    found = list(zip(edges.affinity[rows].tolist(), edges.times[rows].tolist(), strict=True))
    assert found == sorted((Counter(one) + Counter(other)).items())


def test_faces_and_sums_of_affinities_are_those_of_the_rows() -> None:
    edges = edges_with([{3: 2, 10: 1}, {255: 4}], [0, 1, 1, 2])
    assert edges.faces.tolist() == [3, 4]
    assert edges.total.tolist() == [16, 1020]


def test_a_full_table_is_rebuilt_and_loses_only_removed_edges() -> None:
    size = 40
    edges = edges_with([{1: 1}, {2: 1}], [0, 1, 2, 3])
    table = new_table(2)
    for other in range(5, size):
        put_edge(table, edges, size, 4, other, 0)
    put_edge(table, edges, size, 0, 1, 0)
    assert table.used[0] < table.keys.size
    assert find_edge(table, size, 1, 0) == 0
    assert find_edge(table, size, 2, 3) == 1, "inserted again when the table was rebuilt"
    assert find_edge(table, size, 38, 39) == NONE
