"""The regions and edges of a graph during agglomeration, as arrays, with the basic operations on them.

    region --first_end--> end --next_end--> end ...      ends of its edges: 2 e and 2 e + 1 are the ends of edge e
    edge --head--> row --next_row--> row ...             its histogram: affinities ascending, with their counts
    edge --next_member--> edge ...                       edges of the input that became this one
    (region, region) --table--> edge

Lists are linked, so merging regions or histograms splices them, without copying or freeing. Ends of removed edges
remain in their lists until these are traversed.

Memory: 17 bytes per row of the histograms, some 140 per edge, 30 per fragment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

NONE = -1

Int64s = NDArray[np.int64]


class Edges(NamedTuple):
    """Columns by edge (P,), and by row of the histograms (R,): next_row, affinity, times."""

    ends: Int64s  # (2 P,): node of either end; end h belongs to edge h // 2
    alive: NDArray[np.bool_]
    stale: NDArray[np.bool_]
    score: NDArray[np.float32]
    queued: Int64s  # origin of the edge in the heap
    origin: Int64s
    faces: Int64s
    total: Int64s  # sum of affinities
    head: Int64s  # first row of the histogram
    next_row: Int64s
    affinity: NDArray[np.uint8]
    times: Int64s
    next_member: Int64s  # edges of the input that became this edge
    last_member: Int64s
    pair_score: NDArray[np.float32]  # of edges of the input: score of the merge that joined their ends


class Nodes(NamedTuple):
    """Columns by node (N,), and by end (2 P,): next_end."""

    waits: NDArray[np.bool_]
    degree: Int64s
    first_end: Int64s
    last_end: Int64s
    next_end: Int64s
    smallest: Int64s  # smallest fragment of the region


class Table(NamedTuple):
    """Hash table from two regions to their edge, with open addressing."""

    keys: Int64s
    values: Int64s
    used: Int64s  # (1,)


class Merges(NamedTuple):
    """Merges in their order: smallest fragment of both regions (a < b), score, origin of the edge."""

    a: Int64s
    b: Int64s
    score: NDArray[np.float32]
    origin: Int64s
    made: Int64s  # (1,)


def new_edges(ends: Int64s, origin: Int64s, first: Int64s, affinity: NDArray[np.uint8], count: Int64s) -> Edges:
    """Edges with the `ends` (2 P,) and histograms of the rows first[p] to first[p + 1]; the rows are copied."""
    size, rows = len(origin), len(affinity)
    next_row = np.arange(1, rows + 1, dtype=np.int64)
    next_row[first[1:] - 1] = NONE
    total = np.add.reduceat(count * affinity, first[:-1]) if rows else np.zeros(0, np.int64)
    faces = np.add.reduceat(count, first[:-1]) if rows else np.zeros(0, np.int64)
    return Edges(
        ends=ends.copy(),
        alive=np.ones(size, np.bool_),
        stale=np.zeros(size, np.bool_),
        score=np.zeros(size, np.float32),
        queued=origin.copy(),
        origin=origin.copy(),
        faces=faces.astype(np.int64),
        total=total.astype(np.int64),
        head=first[:-1].copy(),
        next_row=next_row,
        affinity=affinity.copy(),
        times=count.copy(),
        next_member=np.full(size, NONE, np.int64),
        last_member=np.arange(size, dtype=np.int64),
        pair_score=np.full(size, np.nan, np.float32),
    )


def new_nodes(ends: Int64s, waits: NDArray[np.bool_]) -> Nodes:
    """Regions of one fragment each, with the ends of their edges; `waits` (N,) marks those that must not merge."""
    size = len(waits)
    first_end, last_end = np.full(size, NONE, np.int64), np.full(size, NONE, np.int64)
    next_end, smallest = np.full(len(ends), NONE, np.int64), np.arange(size, dtype=np.int64)
    nodes = Nodes(waits.copy(), np.bincount(ends, minlength=size), first_end, last_end, next_end, smallest)
    _link_ends(nodes, ends)
    return nodes


def new_table(edge_count: int) -> Table:
    """A table without entries, at most half filled by the edges."""
    capacity = 1 << max(4, (2 * edge_count).bit_length())
    return Table(np.full(capacity, NONE, np.int64), np.zeros(capacity, np.int64), np.zeros(1, np.int64))


def new_merges(node_count: int) -> Merges:
    """Empty arrays for the largest possible number of merges."""
    most = max(0, node_count - 1)
    a, b, origin = (np.zeros(most, np.int64) for _ in range(3))
    return Merges(a, b, np.zeros(most, np.float32), origin, np.zeros(1, np.int64))


def histograms_of(edges: Edges, chosen: Int64s) -> tuple[Int64s, Int64s]:
    """Rows of the histograms of the edges `chosen`: where each histogram begins (and the end), and the rows."""
    length = _lengths(edges, chosen)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)])
    return first, _rows(edges, chosen, int(first[-1]))


@compiled
def chosen_by_member(edges: Edges, chosen: Int64s) -> Int64s:
    """For each edge of the input the index in `chosen` of the edge that it is now, NONE if it was merged."""
    place_of = np.full(edges.alive.size, NONE, np.int64)
    for place in range(chosen.size):
        member = chosen[place]
        while member != NONE:
            place_of[member] = place
            member = edges.next_member[member]
    return place_of


@compiled
def _lengths(edges: Edges, chosen: Int64s) -> Int64s:
    length = np.zeros(chosen.size, np.int64)
    for place in range(chosen.size):
        row = edges.head[chosen[place]]
        while row != NONE:
            length[place] += 1
            row = edges.next_row[row]
    return length


@compiled
def _rows(edges: Edges, chosen: Int64s, total: int) -> Int64s:
    rows = np.empty(total, np.int64)
    known = 0
    for edge in chosen:
        row = edges.head[edge]
        while row != NONE:
            rows[known] = row
            known += 1
            row = edges.next_row[row]
    return rows


@compiled
def _link_ends(nodes: Nodes, ends: Int64s) -> None:
    for end in range(ends.size):
        append_end(nodes, ends[end], end)


@compiled
def append_end(nodes: Nodes, node: int, end: int) -> None:
    """Append an edge end to a region's list."""
    nodes.next_end[end] = NONE
    if nodes.first_end[node] == NONE:
        nodes.first_end[node] = end
    else:
        nodes.next_end[nodes.last_end[node]] = end
    nodes.last_end[node] = end


@compiled
def spliced(edges: Edges, one: int, other: int) -> int:
    """The sum of two histograms, as an ascending list without repetitions like both inputs."""
    head, last = NONE, NONE
    while min(one, other) != NONE:
        if edges.affinity[one] > edges.affinity[other]:
            one, other = other, one
        if edges.affinity[one] == edges.affinity[other]:
            edges.times[one] += edges.times[other]
            other = edges.next_row[other]
        if last == NONE:
            head = one
        else:
            edges.next_row[last] = one
        last = one
        one = edges.next_row[one]
    rest = one if one != NONE else other
    if last == NONE:
        return rest
    edges.next_row[last] = rest
    return head


@compiled
def find_edge(table: Table, node_count: int, a: int, b: int) -> int:
    """The edge between two regions, NONE if there is none."""
    key = min(a, b) * node_count + max(a, b)
    place = _place(key, table.keys.size)
    while table.keys[place] != NONE:
        if table.keys[place] == key:
            return int(table.values[place])
        place = (place + 1) & (table.keys.size - 1)
    return NONE


@compiled
def put_edge(table: Table, edges: Edges, node_count: int, a: int, b: int, edge: int) -> None:
    """Record that `edge` joins a and b. If entries of removed regions fill the table, it is rebuilt."""
    if 4 * table.used[0] > 3 * table.keys.size:
        table.keys[:] = NONE
        table.used[0] = 0
        for other in range(edges.alive.size):
            if edges.alive[other] and other != edge:
                _set(table, node_count, edges.ends[2 * other], edges.ends[2 * other + 1], other)
    _set(table, node_count, a, b, edge)


@compiled
def _set(table: Table, node_count: int, a: int, b: int, edge: int) -> None:
    key = min(a, b) * node_count + max(a, b)
    place = _place(key, table.keys.size)
    while table.keys[place] != NONE and table.keys[place] != key:
        place = (place + 1) & (table.keys.size - 1)
    if table.keys[place] == NONE:
        table.keys[place] = key
        table.used[0] += 1
    table.values[place] = edge


@compiled
def _place(key: int, size: int) -> np.int64:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(20)) & np.uint64(size - 1))
