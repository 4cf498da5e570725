"""The loop of agglomeration on a graph: merge the cheapest pair of regions, and sum edges that became parallel.

          c              a and b are merged: a-c and b-c become one edge, whose histogram is the sum of both
        /   \\             score(a+b, c) is never below both score(a, c) and score(b, c)      (quantiles and means)
       a --- b

1. Edges are in a heap by (score, origin). The merge of two edges keeps the heap entry of the cheaper one and marks it
   stale. It is rescored when it reaches the top. It cannot have become cheaper (see above), so no merge is too late.
2. Ties: `origin` of an input edge is its rank, that of a merged edge the larger of the two. So no two edges are equal,
   and (score, origin) of a merged edge is never below both of its parts either. Then the order in which mutually
   cheapest pairs are merged does not matter: there is one merge tree, whatever the order of rows, the block grid or
   the super-blocks. The ids of regions have no influence.
3. A region that waits (not all of its neighbours are known here) is not merged, and a region whose cheapest edge leads
   to a waiting region also waits. So all merges are those of the whole graph.

Of two regions the one with fewer edges is moved. The arrays are described in region_arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate import merge_functions
from lsdflow_agglomerate.region_arrays import (
    NONE,
    Edges,
    Merges,
    Nodes,
    Table,
    append_end,
    find_edge,
    put_edge,
    spliced,
)
from lsdflow_runtime.compiled import compiled

# Edges with this score or more are not merged.
HIGHEST_SCORE = 1.0

Int64s = NDArray[np.int64]


@compiled
def merge_regions(edges: Edges, nodes: Nodes, table: Table, merges: Merges, code: int) -> None:
    """Merge while the cheapest score is below HIGHEST_SCORE; edges of waiting regions are not merged."""
    heap = np.empty(edges.alive.size, np.int64)
    size = 0
    for edge in range(edges.alive.size):
        a, b = edges.ends[2 * edge], edges.ends[2 * edge + 1]
        put_edge(table, edges, nodes.degree.size, a, b, edge)
        if nodes.waits[a] and nodes.waits[b]:
            continue
        edges.score[edge] = _score(edges, edge, code)
        edges.queued[edge] = edges.origin[edge]
        heap[size] = edge
        _sift_up(heap, size, edges)
        size += 1
    while size > 0:
        edge = heap[0]
        if not edges.alive[edge]:
            size = _drop_top(heap, size, edges)
            continue
        if edges.score[edge] >= HIGHEST_SCORE:
            break
        if edges.stale[edge]:
            edges.stale[edge] = False
            edges.score[edge] = _score(edges, edge, code)
            edges.queued[edge] = edges.origin[edge]
            _sift_down(heap, size, edges)
            continue
        size = _drop_top(heap, size, edges)
        a, b = edges.ends[2 * edge], edges.ends[2 * edge + 1]
        if nodes.waits[a] or nodes.waits[b]:
            nodes.waits[a] = True
            nodes.waits[b] = True
        else:
            _note(edges, nodes, merges, edge)
            _join(edges, nodes, table, edge)


@compiled
def _score(edges: Edges, edge: int, code: int) -> np.float32:
    """The score of a merge function, by its code; of a quantile: 1 - the middle of its bin, as in waterz."""
    faces = edges.faces[edge]
    if code == merge_functions.MEAN:
        return np.float32(1 - edges.total[edge] / (255 * faces))
    if code == merge_functions.MEDIAN:
        both = _affinity_at(edges, edge, (faces - 1) // 2) + _affinity_at(edges, edge, faces // 2)
        return np.float32(1 - both / (2 * 255))
    return np.float32(1 - (_affinity_at(edges, edge, code * faces // 100) + 0.5) / 256)


@compiled
def _affinity_at(edges: Edges, edge: int, place: int) -> np.int64:
    """The affinity at index `place` of the sorted affinities of a face."""
    row = edges.head[edge]
    while place >= edges.times[row]:
        place -= edges.times[row]
        row = edges.next_row[row]
    return np.int64(edges.affinity[row])


@compiled
def _note(edges: Edges, nodes: Nodes, merges: Merges, edge: int) -> None:
    a, b = nodes.smallest[edges.ends[2 * edge]], nodes.smallest[edges.ends[2 * edge + 1]]
    merge = merges.made[0]
    merges.a[merge], merges.b[merge] = min(a, b), max(a, b)
    merges.score[merge], merges.origin[merge] = edges.score[edge], edges.origin[edge]
    merges.made[0] += 1
    member = edge
    while member != NONE:
        edges.pair_score[member] = edges.score[edge]
        member = edges.next_member[member]


@compiled
def _join(edges: Edges, nodes: Nodes, table: Table, edge: int) -> None:
    """Merge the two regions of an edge: the region with fewer edges becomes part of the other."""
    a, b = edges.ends[2 * edge], edges.ends[2 * edge + 1]
    if nodes.degree[a] < nodes.degree[b]:
        a, b = b, a
    edges.alive[edge] = False
    nodes.degree[a] -= 1
    nodes.smallest[a] = min(nodes.smallest[a], nodes.smallest[b])
    end = nodes.first_end[b]
    while end != NONE:
        following = nodes.next_end[end]
        moved = end // 2
        if edges.alive[moved]:
            c = edges.ends[end ^ 1]
            edges.ends[end] = a
            there = find_edge(table, nodes.degree.size, a, c)
            if there == NONE:
                append_end(nodes, a, end)
                nodes.degree[a] += 1
                put_edge(table, edges, nodes.degree.size, a, c, moved)
            else:
                nodes.degree[c] -= 1
                if _is_before(edges, moved, there):
                    _add(edges, there, moved)
                    append_end(nodes, a, end)
                    put_edge(table, edges, nodes.degree.size, a, c, moved)
                else:
                    _add(edges, moved, there)
        end = following


@compiled
def _add(edges: Edges, gone: int, kept: int) -> None:
    """Add one edge to another that joins the same regions."""
    edges.alive[gone] = False
    edges.stale[kept] = True
    edges.origin[kept] = max(edges.origin[kept], edges.origin[gone])
    edges.faces[kept] += edges.faces[gone]
    edges.total[kept] += edges.total[gone]
    edges.head[kept] = spliced(edges, edges.head[kept], edges.head[gone])
    edges.next_member[edges.last_member[kept]] = gone
    edges.last_member[kept] = edges.last_member[gone]


@compiled
def _is_before(edges: Edges, one: int, other: int) -> bool:
    if edges.score[one] != edges.score[other]:
        return bool(edges.score[one] < edges.score[other])
    return bool(edges.queued[one] < edges.queued[other])


@compiled
def _sift_up(heap: Int64s, place: int, edges: Edges) -> None:
    edge = heap[place]
    while place > 0:
        parent = (place - 1) // 2
        if not _is_before(edges, edge, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = edge


@compiled
def _sift_down(heap: Int64s, size: int, edges: Edges) -> None:
    """Restore the heap order after a change of the top edge."""
    edge = heap[0]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(edges, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(edges, heap[child], edge):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = edge


@compiled
def _drop_top(heap: Int64s, size: int, edges: Edges) -> int:
    heap[0] = heap[size - 1]
    if size > 1:
        _sift_down(heap, size - 1, edges)
    return size - 1
