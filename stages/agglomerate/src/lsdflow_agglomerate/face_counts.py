"""Faces of one block between fragments, counted by affinity: the part of every edge that lies in this block.

    +---+---+---+     A block counts the faces of its own voxels towards their lower neighbours (z - 1, y - 1, x - 1),
    |   |own    |     one layer of which belongs to the blocks before it. So each face of the volume is counted by
    +---+---+---+     exactly one block, wherever the blocks are cut, and the counts of all blocks add up.

Affinity c of voxel p says how surely p and its lower neighbour along axis c are one cell, in 1/255.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.face_codes import AFFINITIES, face_codes, ranked
from lsdflow_contract.errors import InternalError
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagFaces

# Numbers of both fragments and the affinity share 62 bits: more fragments than this no block can hold.
MOST_FRAGMENTS = 2**27


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
    ids, ranks = ranked(fragments)
    if len(ids) > MOST_FRAGMENTS:
        raise InternalError("too many fragments in a block", wanted=MOST_FRAGMENTS, found=len(ids))
    before_z, before_y, before_x = (w - r for w, r in zip(write.begin_vox, read.begin_vox, strict=True))
    codes = face_codes(affs, ranks, len(ids), (before_z, before_y, before_x))
    distinct, count = np.unique(codes, return_counts=True)
    pair, affinity = np.divmod(distinct, AFFINITIES)
    u, v = np.divmod(pair, len(ids))
    return RagFaces.of(ids[u], ids[v], affinity.astype(np.uint8), count)
