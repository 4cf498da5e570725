"""Segments found in parts are those of the whole graph, whatever the parts, and memory holds one part at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.graph import RagEdges
from lsdflow_segment import partitioned_graph
from lsdflow_segment.components import Forest, ThresholdSweep
from lsdflow_segment.graph import InMemoryGraph
from lsdflow_segment.hierarchy import Part, Segments
from lsdflow_segment.partition import NODE, IdHistogram, Partition
from lsdflow_segment.partitioned_graph import PartitionedGraph, find_in_parts

UInt64s = NDArray[np.uint64]
Graph = tuple[UInt64s, UInt64s, UInt64s, NDArray[np.float32]]
SCORES = [0.0, 0.1, 0.25, 0.3, 0.6, 0.9]


class Tree:
    """Parts of any labels: those of level 0 as given, two of a level make one of the next."""

    def __init__(self, graph: Graph, labels: NDArray[np.int64], voxels: UInt64s) -> None:
        self.ids, self.u, self.v, self.scores = graph
        self.voxels = voxels
        ends = labels[np.searchsorted(self.ids, self.u)], labels[np.searchsorted(self.ids, self.v)]
        self.top = int(labels.max()).bit_length()
        self.label = [labels >> level for level in range(self.top + 1)]
        self.common_level = np.array([int(a ^ b).bit_length() for a, b in zip(*ends, strict=True)], np.int64)
        self.ends = ends

    def at(self, level: int, number: int, ids: UInt64s, summaries: list[tuple[Any, Any, Any]]) -> Part:
        if not len(ids):
            return Part(ids, Forest.empty(), np.zeros(0, np.int64))
        here = (self.common_level == level) & (self.ends[0] >> level == number)
        sweep = ThresholdSweep(ids, SCORES)
        sweep.add(self.u[here], self.v[here], self.scores[here])
        for u, v, score in summaries:
            sweep.add(u, v, np.full(len(u), score, np.float32))
        leaving = np.concatenate([self.u[self.common_level > level], self.v[self.common_level > level]])
        return Part(ids, sweep.forest(), np.flatnonzero(np.isin(ids, leaving)))

    def up(self, level: int, number: int) -> tuple[Part, list[Segments], list[Any], Any]:
        """The part, what is known of its nodes, the parts below, and its summaries."""
        if level == 0:
            mine = self.label[0] == number
            below: list[Any] = []
            known = [Segments(self.ids[mine], self.voxels[mine])] * len(SCORES)
            summaries: list[Any] = []
        else:
            numbers = sorted(set(self.label[level - 1][self.label[level] == number].tolist()))
            below = [self.up(level - 1, n) for n in numbers]
            summaries = [(t.u, t.v, s) for child in below for t, s in zip(child[3], SCORES, strict=True)]
            ids = np.concatenate([child[0].ids[child[0].boundary] for child in below])
            order = np.argsort(ids)
            known = [
                Segments(*(np.concatenate(column)[order] for column in zip(*rows, strict=True)))
                for rows in (
                    [(c[3][t].segments.ids, c[3][t].segments.voxels) for c in below] for t in range(len(SCORES))
                )
            ]
        part = self.at(level, number, known[0].ids if level == 0 else ids[order], summaries)
        return part, known, below, list(part.summaries(len(SCORES), lambda t: known[t]))

    def down(self, made: Any, answer: list[Segments], found: list[dict[int, tuple[int, int]]]) -> None:
        part, known, below, _ = made
        finals = []
        for t, roots in enumerate(part.forest.roots(len(SCORES))):
            final = part.final(roots, known[t], answer[t])
            finals.append(Segments(final.ids[roots], final.voxels[roots]))
            if not below:
                rows = zip(part.ids.tolist(), finals[t].ids.tolist(), finals[t].voxels.tolist(), strict=True)
                found[t] |= {i: (name, voxels) for i, name, voxels in rows}
        for child in below:
            place = np.searchsorted(part.ids, child[0].ids[child[0].boundary])
            self.down(child, [Segments(f.ids[place], f.voxels[place]) for f in finals], found)


def local_graph(seed: int, nodes: int = 60, edges: int = 140) -> Graph:
    """Edges mostly between ids that are near to one another, as in a volume."""
    generator = np.random.default_rng(seed)
    ids = np.sort(generator.choice(10**6, nodes, replace=False).astype(np.uint64) + 1)
    a = generator.integers(0, nodes, edges)
    b = np.clip(a + generator.integers(-6, 7, edges), 0, nodes - 1)
    scores = (np.round(generator.random(edges) * 10) / 10).astype(np.float32)
    scores[generator.random(edges) < 0.1] = np.nan
    kept = a != b
    return ids, ids[np.minimum(a, b)][kept], ids[np.maximum(a, b)][kept], scores[kept]


def in_parts(folder: Path, graph: Graph, voxels: UInt64s, most: int, batch: int = 25) -> PartitionedGraph:
    """Found in files; each node is in two rows that share its voxels."""
    ids, u, v, scores = graph

    def nodes() -> Any:
        for begin in range(0, len(ids), batch):
            some = slice(begin, begin + batch)
            yield ids[some], voxels[some] // np.uint64(2)
            yield ids[some], voxels[some] - voxels[some] // np.uint64(2)

    def edges() -> Any:
        for begin in range(0, len(u), batch):
            some = slice(begin, begin + batch)
            yield RagEdges(u[some], v[some], scores[some])

    return find_in_parts(folder, nodes, edges, tuple(SCORES), most, buffer_edges=20)


def in_memory(graph: Graph, voxels: UInt64s) -> InMemoryGraph:
    sweep = ThresholdSweep(graph[0], SCORES)
    sweep.add(*graph[1:])
    return InMemoryGraph(graph[0], voxels, sweep, tuple(SCORES), len(graph[1]))


@given(st.integers(0, 100_000), st.integers(1, 9), st.integers(2, 140))
def test_any_partition_of_the_nodes_gives_the_segments_of_the_whole(seed: int, parts: int, edges: int) -> None:
    graph = local_graph(seed, 40, edges)
    generator = np.random.default_rng(seed)
    voxels = generator.integers(0, 9, len(graph[0])).astype(np.uint64)
    tree = Tree(graph, generator.integers(0, parts, len(graph[0])), voxels)
    found: list[dict[int, tuple[int, int]]] = [{} for _ in SCORES]
    nothing = Segments(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    tree.down(tree.up(tree.top, 0), [nothing] * len(SCORES), found)
    for (piece,), rows in zip(in_memory(graph, voxels).luts(), found, strict=True):
        names = piece.segments
        sums = [int(voxels[names == name].sum()) for name in names]
        assert rows == dict(zip(graph[0].tolist(), zip(names.tolist(), sums, strict=True), strict=True))


@pytest.mark.parametrize(("seed", "most"), [(0, 1000), (1, 25), (2, 8), (3, 2)])
def test_parts_in_files_give_the_tables_and_facts_of_the_whole(tmp_path: Path, seed: int, most: int) -> None:
    graph = local_graph(seed, nodes=40, edges=80)
    voxels = np.random.default_rng(seed).integers(0, 1000, len(graph[0])).astype(np.uint64)
    found, wanted = in_parts(tmp_path, graph, voxels, most), in_memory(graph, voxels)
    assert found.facts() == wanted.facts()
    assert (found.nodes, found.edges, found.voxels) == (wanted.nodes, wanted.edges, wanted.voxels)
    for pieces, (one,) in zip(found.luts(), wanted.luts(), strict=True):
        for name in ("fragments", "segments", "voxels"):
            assert np.array_equal(np.concatenate([getattr(p, name) for p in pieces]), getattr(one, name)), name


def test_eight_parts_of_a_level_make_one_of_the_next_and_an_edge_belongs_to_the_lowest_common_part() -> None:
    partition = Partition(np.arange(0, 200, 2, dtype=np.uint64))
    assert (partition.levels, [partition.parts(level) for level in range(partition.levels)]) == (4, [100, 13, 2, 1])
    assert [list(partition.below(1, n)) for n in (0, 12)] == [list(range(8)), list(range(96, 100))]
    parts = partition.part_of(np.array([0, 1, 2, 199, 10**6], np.uint64))
    assert parts.tolist() == [0, 0, 1, 99, 99]
    assert partition.common_level(np.array([5, 5, 5, 5]), np.array([5, 7, 8, 64])).tolist() == [0, 1, 2, 3]
    assert [Partition(np.zeros(n, np.uint64)).levels for n in (1, 2, 8, 9, 64, 65)] == [1, 2, 2, 3, 3, 4]


def test_ranges_hold_at_most_as_many_ids_as_wanted() -> None:
    ids = np.sort(np.random.default_rng(0).choice(2**40, 5000, replace=False)).astype(np.uint64)
    histogram = IdHistogram(1 << 12)
    for part in np.array_split(np.random.default_rng(1).permutation(ids), 7):
        histogram.add(part)
    partition = histogram.partition(100)
    counts = np.bincount(partition.part_of(ids), minlength=len(partition.begins))
    assert counts.max() <= 100
    assert counts.min() > 0
    assert len(counts) < 75


def test_memory_holds_one_part_or_the_boundary_nodes_of_eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    class Counted(ThresholdSweep):
        def __init__(self, fragments: UInt64s, *rest: Any) -> None:
            held.append(len(fragments))
            super().__init__(fragments, *rest)

    monkeypatch.setattr(partitioned_graph, "ThresholdSweep", Counted)
    graph = local_graph(0, nodes=4000, edges=9000)
    found = in_parts(tmp_path, graph, np.ones(4000, np.uint64), most=200, batch=100)
    assert found.partition.levels == 3
    assert max(held[: found.partition.parts(0)]) <= 200
    # Six ids to either side of a face between parts may have edges through it; eight parts have seven faces and two.
    assert max(held[found.partition.parts(0) :]) <= 9 * 12
    for pieces in found.luts():
        assert max(len(piece.segments) for piece in pieces) <= 200


@pytest.mark.parametrize("killed_at", [0, 5, 25, 60, 95])
def test_a_run_killed_between_two_files_resumes_to_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    class KilledError(Exception):
        pass

    graph = local_graph(1)
    voxels = np.ones(len(graph[0]), np.uint64)
    files = 0
    fsync = os.fsync

    def fsync_until_killed(descriptor: int) -> None:
        nonlocal files
        files += 1
        if files > killed_at:
            raise KilledError
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_until_killed)
        with pytest.raises(KilledError):
            in_parts(tmp_path, graph, voxels, most=30)
    assert in_parts(tmp_path, graph, voxels, most=30).facts() == in_memory(graph, voxels).facts()


def test_complete_files_are_not_written_again(tmp_path: Path) -> None:
    graph = local_graph(2)
    in_parts(tmp_path, graph, np.ones(60, np.uint64), most=10)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    in_parts(tmp_path, graph, np.ones(60, np.uint64), most=10)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(("u", "v"), [(1, 500), (500, 2)])
def test_an_edge_to_an_unknown_fragment_is_refused_within_and_between_parts(tmp_path: Path, u: int, v: int) -> None:
    ids = np.array([1, 2, 900], np.uint64)
    ends = np.array([[min(u, v)], [max(u, v)]], np.uint64)
    for most in (1, 10):
        with pytest.raises(BadData, match="fragment 500"):
            in_parts(tmp_path / str(most), (ids, *ends, np.zeros(1, np.float32)), np.ones(3, np.uint64), most)


def test_missing_rows_and_a_graph_without_fragments_are_refused(tmp_path: Path) -> None:
    graph = local_graph(3)
    found = in_parts(tmp_path / "a", graph, np.ones(60, np.uint64), most=10)
    rows = tmp_path / "a" / "nodes-0.rows"
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(BadData, match="rows of a part are lost"):
        found._rows("nodes", 0, 0, NODE)
    nothing = np.zeros(0, np.uint64)
    with pytest.raises(BadData, match="no fragments"):
        in_parts(tmp_path / "b", (nothing, nothing, nothing, np.zeros(0, np.float32)), nothing, most=10)
