"""One whole number for every face between two fragments: sorting them brings equal faces together.

    code = (number of u * fragments + number of v) * 256 + affinity      numbers follow the ids, so codes order as rows

1. Number the fragments by rank. Ids repeat along x: one search per run of equal voxels.
2. Read the voxels once; note the code of each face towards the lower neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

AFFINITIES = 256
UInt64s = NDArray[np.uint64]


def ranked(fragments: UInt64s) -> tuple[UInt64s, NDArray[np.int32]]:
    """The ids, ascending, beginning with 0 (none); and the place of each voxel's id among them, (z, y, x)."""
    flat = np.ascontiguousarray(fragments).reshape(-1)
    begins = np.append(True, flat[1:] != flat[:-1]) if flat.size else np.zeros(0, bool)
    ids = np.unique(np.append(flat[begins], np.uint64(0)))
    ranks = np.empty(flat.size, np.int32)
    _rank(flat, ids, ranks)
    return ids, ranks.reshape(fragments.shape)


def face_codes(
    affs: NDArray[np.uint8], ranks: NDArray[np.int32], fragments: int, before_vox: tuple[int, int, int]
) -> NDArray[np.int64]:
    """The code of every face between fragments, of voxels towards their lower neighbours.

    :param affs: (3, z, y, x) of a write box.
    :param ranks: of that box and of `before_vox` layers (0 or 1 per axis) below it, 0 = none.
    """
    room = np.empty(3 * affs[0, :1].size, np.int64)
    sections = [np.zeros(0, np.int64)]
    for z in range(affs.shape[1]):
        made = _codes_of_section(affs[:, z], ranks, before_vox, z, fragments, room)
        sections.append(room[:made].copy())
    return np.concatenate(sections)


@compiled
def _rank(flat: UInt64s, ids: UInt64s, ranks: NDArray[np.int32]) -> None:
    last, rank = np.uint64(0), np.int32(0)
    for voxel in range(flat.size):
        if flat[voxel] != last:
            last = flat[voxel]
            rank = np.int32(np.searchsorted(ids, last))
        ranks[voxel] = rank


@compiled
def _codes_of_section(
    affs: NDArray[np.uint8],
    ranks: NDArray[np.int32],
    before: tuple[int, int, int],
    section: int,
    fragments: int,
    codes: NDArray[np.int64],
) -> int:
    """Codes of one section of the write box, (3, y, x) affinities; gives how many."""
    made = 0
    z = section + before[0]
    # The first section, row or voxel of the volume has no lower neighbour: it stands for its own.
    below = ranks[max(z - 1, 0)]
    for y_write in range(affs.shape[1]):
        y = y_write + before[1]
        own, under, behind = ranks[z, y], below[y], ranks[z, max(y - 1, 0)]
        for x_write in range(affs.shape[2]):
            x = x_write + before[2]
            rank = own[x]
            if rank == 0:
                continue
            made = _note(rank, under[x], affs[0, y_write, x_write], fragments, codes, made)
            made = _note(rank, behind[x], affs[1, y_write, x_write], fragments, codes, made)
            made = _note(rank, own[max(x - 1, 0)], affs[2, y_write, x_write], fragments, codes, made)
    return made


@compiled
def _note(a: Any, b: Any, affinity: Any, fragments: int, codes: NDArray[np.int64], made: int) -> int:
    if b > 0 and a != b:
        pair = np.int64(min(a, b)) * fragments + np.int64(max(a, b))
        codes[made] = pair * AFFINITIES + np.int64(affinity)
        return made + 1
    return made
