"""Faces between the fragments of one block, counted by affinity: the contribution of this block to every edge.

    +---+---+---+     A block counts the faces of its own voxels towards their lower neighbours (z - 1, y - 1, x - 1),
    |   |own    |     one layer of which belongs to the blocks before it. So each face of the volume is counted by
    +---+---+---+     exactly one block, whatever their shape, and the counts of all blocks can be summed.

Affinity c of voxel p is the certainty, in 1/255, that p and its lower neighbour along axis c are in the same cell.

1. Find the voxels of a row that differ from their lower neighbours along z, y, x. Most voxels do not, so this is fast.

    row              4 4 4 4 7 7 7
    its neighbours   4 4 4 7 7 5 5
    differs                ^   ^ ^      pairs (4, 7), (5, 7)

2. Look up each of these pairs in a hash table (open addressing, at most a fourth full), which numbers pairs in the
   order in which they are found: (4, 7) is 0, (5, 7) is 1.
3. Sort the faces by affinity: count, then place.
4. Process them in that order. A pair gets a row for each affinity that it has, so the rows of each pair ascend, and
   only the pairs are sorted by ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import InternalError
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagFaces
from lsdflow_runtime.compiled import compiled

PLACES_PER_PAIR = 4

UInt64s = NDArray[np.uint64]
AFFINITIES = 256

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Faces:
    """Pairs u < v uint64 (P,), each once, in no order; faces: number of the pair int32 (F,), affinity u8 (F,)."""

    u: UInt64s
    v: UInt64s
    pair: NDArray[np.int32]
    affinity: NDArray[np.uint8]


def find_faces(affs: NDArray[np.uint8], fragments: UInt64s, before_vox: tuple[int, int, int]) -> Faces:
    """The faces between fragments, of the voxels of a box towards their lower neighbours.

    :param affs: (3 or more, z, y, x) of the box.
    :param fragments: ids of the box and of `before_vox` layers (0 or 1 per axis) below it, 0 = none.
    """
    return Faces(*_find_faces(np.ascontiguousarray(affs[:3]), np.ascontiguousarray(fragments), before_vox))


@compiled
def _find_faces(
    affs: NDArray[np.uint8], fragments: UInt64s, before: tuple[int, int, int]
) -> tuple[UInt64s, UInt64s, NDArray[np.int32], NDArray[np.uint8]]:
    before_z, before_y, before_x = before
    most = 3 * affs.shape[3]
    table = np.zeros((16, 3), np.uint64)
    pair, affinity = np.empty(16, np.int32), np.empty(16, np.uint8)
    differs = np.empty(fragments.shape[2] + 1, np.int32)
    pairs, faces = 0, 0
    for z_write in range(affs.shape[1]):
        z = z_write + before_z
        for y_write in range(affs.shape[2]):
            y = y_write + before_y
            table = _with_room(table, pairs + most)
            while faces + most > pair.size:
                pair, affinity = np.concatenate((pair, pair)), np.concatenate((affinity, affinity))
            seen, row = affs[:, z_write, y_write], fragments[z, y, before_x:]
            made = (pair, affinity)
            if z > 0:
                under = fragments[z - 1, y, before_x:]
                pairs, faces = _note_row(row, under, seen[0], differs, table, pairs, made, faces)
            if y > 0:
                behind = fragments[z, y - 1, before_x:]
                pairs, faces = _note_row(row, behind, seen[1], differs, table, pairs, made, faces)
            row, left = fragments[z, y, 1:], fragments[z, y, :-1]
            pairs, faces = _note_row(row, left, seen[2, 1 - before_x :], differs, table, pairs, made, faces)
    u, v = _pairs_of(table, pairs)
    return u, v, pair[:faces].copy(), affinity[:faces].copy()


@compiled
def _note_row(
    row: UInt64s,
    lower: UInt64s,
    affs: NDArray[np.uint8],
    differs: NDArray[np.int32],
    table: UInt64s,
    pairs: int,
    made: tuple[NDArray[np.int32], NDArray[np.uint8]],
    faces: int,
) -> tuple[int, int]:
    """Record the faces between two rows; returns the new numbers of pairs and faces."""
    pair, affinity = made
    count = 0
    for x in range(row.size):
        differs[count] = x
        count += row[x] != lower[x]
    for face in range(count):
        x = differs[face]
        u, v = min(row[x], lower[x]), max(row[x], lower[x])
        if u == 0:
            continue
        place = _place(table, u, v)
        if table[place, 0] == 0:
            table[place, 0], table[place, 1], table[place, 2] = u, v, pairs
            pairs += 1
        pair[faces], affinity[faces] = table[place, 2], affs[x]
        faces += 1
    return pairs, faces


@compiled
def _place(table: UInt64s, u: Any, v: Any) -> np.int64:
    """The index of a pair in the table, or a free index for it."""
    last = np.int64(table.shape[0] - 1)
    mixed = ((u * np.uint64(0x9E3779B97F4A7C15)) ^ v) * np.uint64(0xC2B2AE3D27D4EB4F)
    place = np.int64(mixed >> np.uint64(32)) & last
    while table[place, 0] != 0 and (table[place, 0] != u or table[place, 1] != v):
        place = (place + 1) & last
    return place


@compiled
def _with_room(table: UInt64s, pairs: int) -> UInt64s:
    """A table with room for this many pairs: the same, or a larger one with the same entries."""
    size = table.shape[0]
    if size >= PLACES_PER_PAIR * pairs:
        return table
    while size < PLACES_PER_PAIR * pairs:
        size *= 2
    larger = np.zeros((size, 3), np.uint64)
    for entry in table:
        if entry[0] != 0:
            larger[_place(larger, entry[0], entry[1])] = entry
    return larger


@compiled
def _pairs_of(table: UInt64s, pairs: int) -> tuple[UInt64s, UInt64s]:
    u, v = np.empty(pairs, np.uint64), np.empty(pairs, np.uint64)
    for entry in table:
        if entry[0] != 0:
            u[entry[2]], v[entry[2]] = entry[0], entry[1]
    return u, v


def box_with_lower_neighbours(write: Box, total: Box) -> Box:
    """The box of fragments that a block needs: its own voxels, and one layer below them inside the volume."""
    return write.grow((1, 1, 1), (0, 0, 0)).intersect(total)


def count_faces(affs: NDArray[np.uint8], fragments: NDArray[np.uint64], write: Box, read: Box) -> RagFaces:
    """Count the faces of the voxels of `write` between two different fragments.

    :param affs: (3 or more, z, y, x) u8 of the write box.
    :param fragments: (z, y, x) ids of the read box (:func:`box_with_lower_neighbours`), 0 = none.
    :returns: rows ascending by (u, v, affinity), each once.
    """
    if affs.shape[1:] != write.shape_vox or fragments.shape != read.shape_vox:
        found = (affs.shape, fragments.shape)
        raise InternalError("arrays and boxes differ", wanted=(write.shape_vox, read.shape_vox), found=found)
    before_z, before_y, before_x = (w - r for w, r in zip(write.begin_vox, read.begin_vox, strict=True))
    return rows_of(find_faces(affs, fragments, (before_z, before_y, before_x)))


def rows_of(faces: Faces) -> RagFaces:
    """A row for each pair and affinity that occurs, ascending by (u, v, affinity)."""
    order = np.lexsort((faces.v, faces.u))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    ranks, begins = _by_affinity(faces.pair, rank, faces.affinity)
    first = _first_rows(ranks, begins, len(order))
    affinity, count = _counted(ranks, begins, first)
    rows = np.diff(first)
    return RagFaces.of(np.repeat(faces.u[order], rows), np.repeat(faces.v[order], rows), affinity, count)


@compiled
def _by_affinity(pair: Int32s, rank: Int32s, affinity: NDArray[np.uint8]) -> tuple[Int32s, Int64s]:
    """Ranks of the faces' pairs in the order of affinities, and where each affinity begins (and the end)."""
    begins = np.zeros(AFFINITIES + 1, np.int64)
    for face in range(affinity.size):
        begins[np.int64(affinity[face]) + 1] += 1
    begins = np.cumsum(begins)
    place = begins.copy()
    ranks = np.empty(pair.size, np.int32)
    for face in range(pair.size):
        ranks[place[affinity[face]]] = rank[pair[face]]
        place[affinity[face]] += 1
    return ranks, begins


@compiled
def _first_rows(ranks: Int32s, begins: Int64s, pairs: int) -> Int64s:
    """Where the rows of each pair begin (and the end)."""
    first = np.zeros(pairs + 1, np.int64)
    met_with = np.full(pairs, -1, np.int16)
    for affinity in range(AFFINITIES):
        for face in range(begins[affinity], begins[affinity + 1]):
            pair = ranks[face]
            first[pair + 1] += met_with[pair] != affinity
            met_with[pair] = affinity
    return np.cumsum(first)


@compiled
def _counted(ranks: Int32s, begins: Int64s, first: Int64s) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Affinity and count of every row."""
    affinities, counts = np.zeros(first[-1], np.uint8), np.zeros(first[-1], np.uint64)
    row = first[:-1] - 1
    met_with = np.full(row.size, -1, np.int16)
    for affinity in range(AFFINITIES):
        for face in range(begins[affinity], begins[affinity + 1]):
            pair = ranks[face]
            row[pair] += met_with[pair] != affinity
            met_with[pair] = affinity
            affinities[row[pair]] = affinity
            counts[row[pair]] += np.uint64(1)
    return affinities, counts
