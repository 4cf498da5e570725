"""Every face between two fragments, by one reading of the voxels; pairs of fragments are numbered as they are met.

    row              4 4 4 4 7 7 7      1. Note where a row of voxels differs from its lower neighbours along z, y, x;
    its neighbours   4 4 4 7 7 5 5         most voxels do not, so this asks nothing and goes fast.
    differs                ^   ^ ^      2. Look up each pair so noted in a table: (4, 7) is 0, (5, 7) is 1.

The table is open addressing, a fourth full at most: a pair is mostly found at the first place looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

PLACES_PER_PAIR = 4

UInt64s = NDArray[np.uint64]


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
    """Note the faces between two rows; gives how many pairs and faces there are now."""
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
    """Where a pair stands in the table, or belongs."""
    last = np.int64(table.shape[0] - 1)
    mixed = ((u * np.uint64(0x9E3779B97F4A7C15)) ^ v) * np.uint64(0xC2B2AE3D27D4EB4F)
    place = np.int64(mixed >> np.uint64(32)) & last
    while table[place, 0] != 0 and (table[place, 0] != u or table[place, 1] != v):
        place = (place + 1) & last
    return place


@compiled
def _with_room(table: UInt64s, pairs: int) -> UInt64s:
    """A table with room for so many pairs: the same, or a larger one with the same entries."""
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
