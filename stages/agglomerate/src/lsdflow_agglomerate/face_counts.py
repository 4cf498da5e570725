"""Faces of one block between fragments, counted by affinity: the part of every edge that lies in this block.

    +---+---+---+     A block counts the faces of its own voxels towards their lower neighbours (z - 1, y - 1, x - 1),
    |   |own    |     one layer of which belongs to the blocks before it. So each face of the volume is counted by
    +---+---+---+     exactly one block, wherever the blocks are cut, and the counts of all blocks add up.

Affinity c of voxel p says how surely p and its lower neighbour along axis c are one cell, in 1/255.

1. Find the faces, each with the number of its pair and its affinity (face_pairs).
2. Put the faces in the order of their affinities: count, then place.
3. Go through them in that order. A pair gets a row whenever it is met with an affinity it was not met with before; so
   the rows of each pair come ascending, and only the pairs are ever sorted by ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_pairs import Faces, find_faces
from lsdflow_contract.errors import InternalError
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagFaces
from lsdflow_runtime.compiled import compiled

AFFINITIES = 256

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


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
