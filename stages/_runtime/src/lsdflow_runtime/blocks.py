"""Blocks: the total region divided into write boxes, each with a read box that adds context.

+------ read box -------+
|  context              |      write boxes tile the total box, row-major (x fastest), without overlap;
|   +-- write box --+   |      the last one of an axis may be smaller, because it ends at the total box
|   |               |   |
|   +---------------+   |
+-----------------------+

runs/<stage>/grids/<key>.json      the region and the block shape of a pass, voxels of the target grid, from which the
                                   map of its blocks is drawn during a run
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError, StageError
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.layout import ExperimentLayout


@dataclass(frozen=True)
class Block:
    """A block: row-major number, grid index, write box, read box (voxels of the target grid)."""

    number: int
    index: Vox3
    write: Box
    read: Box

    def __str__(self) -> str:
        return f"block {self.number} {self.write}"


@dataclass(frozen=True)
class BlockPlan:
    """Division of a total box into blocks of `write_shape_vox`, read with `context_vox` around each."""

    total: Box
    write_shape_vox: Vox3
    context_vox: Vox3 = (0, 0, 0)

    def __post_init__(self) -> None:
        if self.total.is_empty:
            raise ConfigError("the region to work on is empty", found=str(self.total), fix="check the roi")
        if min(self.write_shape_vox) < 1 or min(self.context_vox) < 0:
            raise ConfigError(
                "block shape must be positive, context not negative", found=(self.write_shape_vox, self.context_vox)
            )

    def in_voxels(self) -> dict[str, Any]:
        """The lengths of the plan, as parameters of a pass and for the stages that read its result."""
        return {
            "total_begin_vox": list(self.total.begin_vox),
            "total_shape_vox": list(self.total.shape_vox),
            "block_shape_vox": list(self.write_shape_vox),
            "context_vox": list(self.context_vox),
        }

    @property
    def grid_shape(self) -> Vox3:
        """Number of blocks along z, y, x."""
        z, y, x = (math.ceil(t / w) for t, w in zip(self.total.shape_vox, self.write_shape_vox, strict=True))
        return z, y, x

    def __len__(self) -> int:
        return math.prod(self.grid_shape)

    def block(self, number: int) -> Block:
        """The block with a row-major number."""
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
    """The plan of a stage's table. Raises ConfigError naming the keys of impossible shapes."""
    try:
        return BlockPlan(total, write_shape_vox, context_vox)
    except ConfigError as error:
        error.where = error.where or f"{stage}.block_shape, {stage}.context"
        error.fix = error.fix or "at least 1 voxel along each axis of a block, 0 or more of context"
        raise


def pieces(box: Box, shape_vox: Vox3) -> Iterator[Box]:
    """The box divided into boxes of at most `shape_vox`, row-major; none for an empty box."""
    return iter(()) if box.is_empty else (block.write for block in BlockPlan(box, shape_vox).blocks())


def write_grid(layout: ExperimentLayout, stage: str, key: str, plan: BlockPlan) -> None:
    """Write the region and the block shape of a pass, unless the file exists."""
    path = _grid_file(layout, stage, key)
    if not path.exists():
        region = {"begin_vox": plan.total.begin_vox, "shape_vox": plan.total.shape_vox}
        write_json(path, {**region, "block_shape_vox": plan.write_shape_vox})


def read_grid(layout: ExperimentLayout, stage: str, key: str) -> BlockPlan | None:
    """The blocks of a pass, without context; None if its file is missing or damaged."""
    try:
        found = read_json(_grid_file(layout, stage, key))
        begin, shape, block = (_vox3(found[name]) for name in ("begin_vox", "shape_vox", "block_shape_vox"))
        return BlockPlan(Box(begin, shape), block)
    except (StageError, LookupError, TypeError, ValueError):
        return None


def _grid_file(layout: ExperimentLayout, stage: str, key: str) -> Path:
    return layout.stage_runs(stage) / "grids" / f"{key}.json"


def _vox3(values: Any) -> Vox3:
    z, y, x = (int(value) for value in values)
    return z, y, x
