"""Super-blocks: parts of the volume whose graphs fit one memory, joined eight by eight until one is the whole.

    level 1              level 2         level 3           A super-block of level 1 is made of whole blocks whose faces
    +--+--+--+--+--+     +-----+-----+-+  +-----------+    were counted; each level doubles the edges. The last has one.
    |  |  |  |  |  |     |     |     | |  |           |
    +--+--+--+--+--+ --> |     |     | |->|           |    Parts of a super-block have numbers 0 to 7: 4 if it is the
    |  |  |  |  |  |     +-----+-----+-+  |           |    upper half along z, 2 along y, 1 along x, added up.
    +--+--+--+--+--+     +-----+-----+-+  +-----------+

Which fragments of a super-block may be named outside of it? A block names a fragment only if it saw its seed, and the
id tells where the seed is (1 + its place in the target). So those with a seed outside, or no farther inside than the
context of watershed; and those named by the blocks directly above, which count the faces of our uppermost voxels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Vox3
from lsdflow_runtime.blocks import BlockPlan

PARTS = 8

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class SuperBlocks:
    """How the blocks of `faces` are joined.

    `shape_vox` of level 1: whole blocks of faces. `reach_vox`: no block that does not overlap a super-block names a
    fragment whose seed is farther inside than that. `grid_shape_vox`: the target volume, in which seeds have places.
    """

    faces: BlockPlan
    shape_vox: Vox3
    reach_vox: Vox3
    grid_shape_vox: Vox3

    @cached_property
    def levels(self) -> int:
        """Number of levels, at least 1; the last has one super-block."""
        return 1 + (max(self.plan(1).grid_shape) - 1).bit_length()

    def plan(self, level: int) -> BlockPlan:
        """The super-blocks of a level."""
        z, y, x = (edge << (level - 1) for edge in self.shape_vox)
        return BlockPlan(self.faces.total, (z, y, x))

    def parts(self, level: int, number: int) -> dict[int, int]:
        """Numbers of the super-blocks of the level below that a super-block is made of, by part."""
        below, index = self.plan(level - 1).grid_shape, self.plan(level).block(number).index
        found = {}
        for part in range(PARTS):
            z, y, x = (2 * i + half for i, half in zip(index, (part >> 2, part >> 1 & 1, part & 1), strict=True))
            if z < below[0] and y < below[1] and x < below[2]:
                found[part] = (z * below[1] + y) * below[2] + x
        return found

    def whole(self, level: int, number: int) -> tuple[int, int]:
        """Number of the super-block of the level above that a super-block is a part of, and which part."""
        z, y, x = self.plan(level).block(number).index
        _, ny, nx = self.plan(level + 1).grid_shape
        return ((z // 2) * ny + y // 2) * nx + x // 2, (z % 2) << 2 | (y % 2) << 1 | x % 2

    def face_blocks(self, box: Box) -> list[int]:
        """Numbers of the blocks of faces that overlap a box, ascending."""
        inside = box.intersect(self.faces.total).translate(_negative(self.faces.total.begin_vox))
        if inside.is_empty:
            return []
        bounds = zip(inside.begin_vox, inside.end_vox, self.faces.write_shape_vox, strict=True)
        z, y, x = (range(begin // edge, (end - 1) // edge + 1) for begin, end, edge in bounds)
        _, ny, nx = self.faces.grid_shape
        return [(i * ny + j) * nx + k for i in z for j in y for k in x]

    def face_blocks_above(self, box: Box) -> list[int]:
        """Numbers of the blocks directly above a super-block: they count the faces of its uppermost voxels."""
        return sorted({number for layer in _layers_above(box) for number in self.face_blocks(layer)})

    def near_the_outside(self, ids: UInt64s, box: Box) -> NDArray[np.bool_]:
        """Which fragments (N,) have a seed that blocks outside of a super-block may see."""
        _, ny, nx = self.grid_shape_vox
        place = ids - np.uint64(1)
        seed = (place // np.uint64(ny * nx), place // np.uint64(nx) % np.uint64(ny), place % np.uint64(nx))
        near = np.zeros(len(ids), bool)
        for axis, total in enumerate(zip(self.faces.total.begin_vox, self.faces.total.end_vox, strict=True)):
            begin, end, reach = box.begin_vox[axis], box.end_vox[axis], self.reach_vox[axis]
            at = seed[axis].astype(np.int64)
            if begin > total[0]:
                near |= at < begin + reach
            if end < total[1]:
                near |= at >= end - reach
        return near


def _layers_above(box: Box) -> Iterator[Box]:
    for axis in range(3):
        begin, shape = list(box.begin_vox), list(box.shape_vox)
        begin[axis], shape[axis] = box.end_vox[axis], 1
        yield Box((begin[0], begin[1], begin[2]), (shape[0], shape[1], shape[2]))


def _negative(vox: Vox3) -> Vox3:
    return -vox[0], -vox[1], -vox[2]
