"""Blocks: the total region cut into write boxes, each with a read box that has context around it.

+------ read box -------+
|  context              |      write boxes tile the total box, row-major (x fastest), without overlap;
|   +-- write box --+   |      the last of an axis may be smaller: it is cut at the total box
|   |               |   |
|   +---------------+   |
+-----------------------+
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Vox3


@dataclass(frozen=True)
class Block:
    """One piece of work: row-major number, grid index, write box, read box (voxels of the target grid)."""

    number: int
    index: Vox3
    write: Box
    read: Box

    def __str__(self) -> str:
        return f"block {self.number} {self.write}"


@dataclass(frozen=True)
class BlockPlan:
    """How a total box is cut into blocks of `write_shape_vox` with `context_vox` read around each."""

    total: Box
    write_shape_vox: Vox3
    context_vox: Vox3 = (0, 0, 0)

    def __post_init__(self) -> None:
        if self.total.is_empty:
            raise ConfigError("the region to work on is empty", found=str(self.total), hint="check the roi")
        if min(self.write_shape_vox) < 1 or min(self.context_vox) < 0:
            raise ConfigError(
                "block shape must be positive, context not negative", found=(self.write_shape_vox, self.context_vox)
            )

    @property
    def grid_shape(self) -> Vox3:
        """Number of blocks along z, y, x."""
        z, y, x = (math.ceil(t / w) for t, w in zip(self.total.shape_vox, self.write_shape_vox, strict=True))
        return z, y, x

    def __len__(self) -> int:
        return math.prod(self.grid_shape)

    def block(self, number: int) -> Block:
        """The block of a row-major number."""
        _, ny, nx = self.grid_shape
        index = (number // (ny * nx), number // nx % ny, number % nx)
        begin = (
            self.total.begin_vox[0] + index[0] * self.write_shape_vox[0],
            self.total.begin_vox[1] + index[1] * self.write_shape_vox[1],
            self.total.begin_vox[2] + index[2] * self.write_shape_vox[2],
        )
        write = Box(begin, self.write_shape_vox).intersect(self.total)
        return Block(number, index, write, write.grow(self.context_vox))

    def number_at(self, begin_vox: Sequence[int]) -> int:
        """The row-major number of the block whose write box begins at a voxel."""
        steps = zip(begin_vox, self.total.begin_vox, self.write_shape_vox, strict=True)
        iz, iy, ix = ((begin - first) // width for begin, first, width in steps)
        _, ny, nx = self.grid_shape
        return (iz * ny + iy) * nx + ix

    def blocks(self) -> Iterator[Block]:
        """All blocks, row-major."""
        return (self.block(number) for number in range(len(self)))


def block_plan(total: Box, write_shape_vox: Vox3, context_vox: Vox3, stage: str) -> BlockPlan:
    """The plan of a stage's table. ConfigError names the keys that give shapes which cannot be."""
    try:
        return BlockPlan(total, write_shape_vox, context_vox)
    except ConfigError as error:
        error.where = error.where or f"{stage}.block_shape, {stage}.context"
        error.hint = error.hint or "at least 1 voxel along each axis of a block, 0 or more of context"
        raise


def pieces(box: Box, shape_vox: Vox3) -> Iterator[Box]:
    """The box cut into pieces of at most `shape_vox`, row-major; nothing for an empty box."""
    return iter(()) if box.is_empty else (block.write for block in BlockPlan(box, shape_vox).blocks())
