"""A graph dealt out to the parts in which its segments are found: each node to its part, each edge to where it closes.

1. All ids are counted where they lie; ranges with at most so many rows of nodes are the parts of level 0.
2. Nodes go to their part. Edges that some threshold merges go to the lowest part that holds both ends; where that is
   above level 0, both parts of level 0 are told of their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from lsdflow_contract.graph import RagEdges
from lsdflow_contract.sealing import write_sealed
from lsdflow_segment.components import require_fragments
from lsdflow_segment.hierarchy import Cut, IdHistogram
from lsdflow_segment.part_files import EDGE, END, NODE, RowFiles, mapped, write_array
from lsdflow_segment.parted_graph import PartedGraph
from lsdflow_segment.sizes import UInt64s

# Ids uint64 (n,) and voxels uint64 (n,) of the nodes of a block.
Nodes = Callable[[], Iterable[tuple[UInt64s, UInt64s]]]
Edges = Callable[[], Iterable[RagEdges]]


def find_by_parts(
    folder: Path, nodes: Nodes, edges: Edges, thresholds: tuple[float, ...], most_nodes: int, buffer_edges: int
) -> PartedGraph:
    """Find the segments of all thresholds, part by part, in `folder`; what an earlier run left there is taken over.

    `nodes` are read twice, `edges` once; most_nodes: rows of nodes of a part. Raises BadData as the whole form does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = PartedGraph(folder, thresholds, buffer_edges, _cut(folder / "begins.npy", nodes, most_nodes))
    if not (folder / "dealt.json").exists():
        _deal(graph, nodes, edges)
    graph.go_up()
    graph.go_down()
    return graph


def _cut(path: Path, nodes: Nodes, most_nodes: int) -> Cut:
    if not path.exists():
        histogram = IdHistogram()
        for ids, _ in nodes():
            histogram.add(ids)
        begins = histogram.cut(most_nodes).begins
        write_array(path, begins.shape, np.uint64, [begins])
    return Cut(mapped(path))


def _deal(graph: PartedGraph, nodes: Nodes, edges: Edges) -> None:
    for left in graph.folder.glob("*.rows"):
        left.unlink()
    voxels, node_rows = _deal_nodes(graph, nodes)
    if not node_rows:
        require_fragments(np.zeros(0, np.uint64))
    read, edge_rows = _deal_edges(graph, edges)
    write_sealed(graph.folder / "dealt.json", {"edges": read, "voxels": voxels, "rows": {**node_rows, **edge_rows}})


def _deal_nodes(graph: PartedGraph, nodes: Nodes) -> tuple[int, dict[str, int]]:
    """Voxels of all nodes, and the rows in each file."""
    files = RowFiles(graph.folder, "nodes", NODE)
    total = 0
    for ids, voxels in nodes():
        files.add(graph.cut.part_of(ids), ids, voxels)
        total += int(voxels.sum())
    files.finish()
    return total, files.counts


def _deal_edges(graph: PartedGraph, edges: Edges) -> tuple[int, dict[str, int]]:
    """How many edges were read, and the rows in each file."""
    cut = graph.cut
    inside, ends = RowFiles(graph.folder, "edges", EDGE), RowFiles(graph.folder, "ends", END)
    before = np.array([cut.number(level, 0) for level in range(cut.levels)])
    highest = np.float32(graph.thresholds[-1])
    read = 0
    for rows in edges():
        read += len(rows)
        merging = np.flatnonzero(rows.merge_score <= highest)
        u, v, score = rows.u[merging], rows.v[merging], rows.merge_score[merging]
        part_u, part_v = cut.part_of(u), cut.part_of(v)
        level = cut.meeting_level(part_u, part_v)
        inside.add(before[level] + cut.above(part_u, level), u, v, score)
        for ids, part in ((u, part_u), (v, part_v)):
            leaving = level > 0
            ends.add(part[leaving], ids[leaving], level[leaving])
    inside.finish()
    ends.finish()
    return read, {**inside.counts, **ends.counts}
