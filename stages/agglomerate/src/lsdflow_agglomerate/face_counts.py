"""Faces of one block between fragments, counted by affinity: the part of every edge that lies in this block.

    +---+---+---+     A block counts the faces of its own voxels towards their lower neighbours (z - 1, y - 1, x - 1),
    |   |own    |     one layer of which belongs to the blocks before it. So each face of the volume is counted by
    +---+---+---+     exactly one block, wherever the blocks are cut, and the counts of all blocks add up.

Affinity c of voxel p says how surely p and its lower neighbour along axis c are one cell, in 1/255.
"""

from __future__ import annotations

import fastremap
import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import InternalError
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagFaces

AFFINITIES = 256
# u * n + v and the affinity share 62 bits: more fragments than this no block can hold.
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
    ids, dense = fastremap.unique(np.ascontiguousarray(fragments), return_inverse=True)
    if len(ids) > MOST_FRAGMENTS:
        raise InternalError("too many fragments in a block", wanted=MOST_FRAGMENTS, found=len(ids))
    numbers = dense.reshape(fragments.shape).astype(np.int64)
    background = int(np.searchsorted(ids, 0)) if len(ids) and ids[0] == 0 else -1
    codes = [_face_codes(affs[axis], numbers, axis, (write, read), background) for axis in range(3)]
    distinct, count = np.unique(np.concatenate(codes), return_counts=True)
    pair, affinity = np.divmod(distinct, AFFINITIES)
    u, v = np.divmod(pair, MOST_FRAGMENTS)
    return RagFaces.of(ids[u].astype(np.uint64), ids[v].astype(np.uint64), affinity.astype(np.uint8), count)


def _face_codes(
    affinity: NDArray[np.uint8], numbers: NDArray[np.int64], axis: int, boxes: tuple[Box, Box], background: int
) -> NDArray[np.int64]:
    """One number for pair and affinity of every face along an axis."""
    write, read = boxes
    begin_vox = list(write.begin_vox)
    begin_vox[axis] = max(begin_vox[axis], read.begin_vox[axis] + 1)
    z, y, x = begin_vox
    upper = Box.from_bounds((z, y, x), write.end_vox)
    down = (-int(axis == 0), -int(axis == 1), -int(axis == 2))
    a = numbers[upper.slices(relative_to=read.begin_vox)]
    b = numbers[upper.translate(down).slices(relative_to=read.begin_vox)]
    face = (a != b) & (a != background) & (b != background)
    a, b = a[face], b[face]
    pair = np.minimum(a, b) * MOST_FRAGMENTS + np.maximum(a, b)
    codes: NDArray[np.int64] = pair * AFFINITIES + affinity[upper.slices(relative_to=write.begin_vox)][face]
    return codes
