"""The levels of a multiscale volume: which axes are halved, and the positions of the voxels of each level.

The finer axes are halved until voxels are as isotropic as halving can make them, then all axes: 40, 8, 8 nm is
followed by 40, 16, 16; 40, 32, 32; 80, 64, 64. Level 0 is the volume itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_runtime.blocks import BlockPlan

# The last level fits on a screen, because viewers begin with it.
COARSEST_EDGE_VOX = 64


@dataclass(frozen=True)
class Level:
    """One level: `box` on the grid of this level, `step` (1 or 2 per axis) from the finer level."""

    number: int
    step: Vox3
    voxel_size_nm: Nm3
    box: Box

    def finer_box(self, box: Box, finer: Box) -> Box:
        """The voxels of the finer level (whose whole box is `finer`) from which `box` is computed."""
        begin = _times(box.begin_vox, self.step)
        return Box(begin, _times(box.shape_vox, self.step)).intersect(finer)

    def cut_voxels(self, box: Box, finer: Box) -> tuple[Vox3, Vox3]:
        """How many voxels are missing below and above in the bins of `box`, because `finer` ends inside them."""
        whole = Box(_times(box.begin_vox, self.step), _times(box.shape_vox, self.step))
        part = whole.intersect(finer)
        return _minus(part.begin_vox, whole.begin_vox), _minus(whole.end_vox, part.end_vox)


def pyramid(voxel_size_nm: Nm3, box: Box, count: int) -> tuple[Level, ...]:
    """`count` levels of a volume with voxels `box`. Bins begin at even voxels of the grid that `box` is given on."""
    levels = [Level(0, (1, 1, 1), voxel_size_nm, box)]
    while len(levels) < count:
        levels.append(_coarser(levels[-1]))
    return tuple(levels)


def level_count(voxel_size_nm: Nm3, box: Box) -> int:
    """The number of levels until the longest edge has COARSEST_EDGE_VOX voxels or fewer."""
    level, count = Level(0, (1, 1, 1), voxel_size_nm, box), 1
    while max(level.box.shape_vox) > COARSEST_EDGE_VOX:
        level, count = _coarser(level), count + 1
    return count


def level_geometry(base: Geometry, level: Level) -> Geometry:
    """The geometry of a level whose voxels are counted from 0: the same corner as `base`, larger voxels."""
    return Geometry(level.voxel_size_nm, base.offset_nm, level.box.shape_vox)


def centre_translation_nm(base: Geometry, level: Level) -> Nm3:
    """The translation of a level: the volume's offset, and the shift of the centre of a larger voxel.

    The centre of a voxel that averages two is half a voxel further: (size - size of level 0) / 2.
    """
    axes = zip(base.offset_nm, level.voxel_size_nm, base.voxel_size_nm, strict=True)
    z, y, x = (offset + (size - finest) / 2 for offset, size, finest in axes)
    return z, y, x


def pieces(box: Box) -> Iterator[Box]:
    """The box halved along each axis: each of the eight boxes is computed from one block of the finer level."""
    z, y, x = (-(-n // 2) for n in box.shape_vox)
    return (block.write for block in BlockPlan(box, (z, y, x)).blocks())


def _coarser(level: Level) -> Level:
    finest = min(level.voxel_size_nm)
    z, y, x = (2 if size < 2 * finest else 1 for size in level.voxel_size_nm)
    step = (z, y, x)
    sizes = tuple(size * s for size, s in zip(level.voxel_size_nm, step, strict=True))
    begin = tuple(b // s for b, s in zip(level.box.begin_vox, step, strict=True))
    end = tuple(-(-e // s) for e, s in zip(level.box.end_vox, step, strict=True))
    box = Box.from_bounds((begin[0], begin[1], begin[2]), (end[0], end[1], end[2]))
    return Level(level.number + 1, step, (sizes[0], sizes[1], sizes[2]), box)


def _times(values: Vox3, factors: Vox3) -> Vox3:
    z, y, x = (v * f for v, f in zip(values, factors, strict=True))
    return z, y, x


def _minus(values: Vox3, others: Vox3) -> Vox3:
    z, y, x = (v - o for v, o in zip(values, others, strict=True))
    return z, y, x
