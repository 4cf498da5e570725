"""Seams: does the segmentation continue across the faces of blocks as it does inside them?

    +---------+---------+     of all pairs of neighbouring voxels on either side of a face of watershed's blocks (#),
    |    :    #    :    |     the share that is in one segment; and the same for planes in the middle of blocks (:).
    |    :    #    :    |     Where blocks leave no trace both are alike.
    +---------+---------+

Pairs with background do not count. No truth is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lsdflow_contract.geometry import Box
from lsdflow_evaluate.scores.counting import vox3
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import Volume

# Enough for a share that is good to a thousandth, in bounded time whatever the volume.
MOST_BLOCKS = 200


@dataclass(frozen=True)
class Agreement:
    """Pairs of voxels of which neither is background, and how many of them are in one segment."""

    pairs: int = 0
    together: int = 0

    @property
    def share(self) -> float:
        """0 to 1; NaN without pairs."""
        return self.together / self.pairs if self.pairs else float("nan")

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.pairs + other.pairs, self.together + other.together)


@dataclass(frozen=True)
class Seams:
    """Agreement across faces of blocks, and across planes in their middle; `blocks` were sampled."""

    faces: Agreement
    inside: Agreement
    blocks: int

    def as_dict(self) -> dict[str, Any]:
        """For scores.json."""
        both = {"faces": self.faces, "inside": self.inside}
        shares = {name: {"pairs": a.pairs, "together": a.together, "share": a.share} for name, a in both.items()}
        return {**shares, "blocks": self.blocks, "gap": self.inside.share - self.faces.share}


def seams_of(segmentation: Volume, blocks: BlockPlan, most_blocks: int = MOST_BLOCKS) -> Seams | None:
    """Compare faces and middles of `blocks`, those of watershed; None if no face is inside the segmentation.

    Raises BadData for a chunk that is lost or damaged.
    """
    step = max(1, len(blocks) // most_blocks)
    numbers = range(0, len(blocks), step)
    faces, inside = Agreement(), Agreement()
    for number in numbers:
        write = blocks.block(number).write
        for axis in range(3):
            for at, box in _planes(write, blocks.total, axis):
                found = agreement_across(segmentation, box, axis)
                faces, inside = (faces + found, inside) if at == "face" else (faces, inside + found)
    return Seams(faces, inside, len(numbers)) if faces.pairs and inside.pairs else None


def agreement_across(segmentation: Volume, box: Box, axis: int) -> Agreement:
    """Agreement of the two layers of voxels that `box` consists of along `axis`; nothing if it leaves the array."""
    inside = box.intersect(segmentation.box)
    if inside.is_empty or inside.shape_vox[axis] != 2:
        return Agreement()
    lower, upper = np.moveaxis(segmentation.read(inside), axis, 0)
    both = (lower > 0) & (upper > 0)
    return Agreement(int(both.sum()), int((both & (lower == upper)).sum()))


def _planes(write: Box, total: Box, axis: int) -> Iterator[tuple[str, Box]]:
    """The lower face of a block along an axis, if there is another block, and the plane in its middle."""
    if write.begin_vox[axis] > total.begin_vox[axis]:
        yield "face", _two_layers(write, axis, write.begin_vox[axis])
    if write.shape_vox[axis] > 1:
        yield "middle", _two_layers(write, axis, write.begin_vox[axis] + write.shape_vox[axis] // 2)


def _two_layers(write: Box, axis: int, upper: int) -> Box:
    begin, shape = list(write.begin_vox), list(write.shape_vox)
    begin[axis], shape[axis] = upper - 1, 2
    return Box(vox3(begin), vox3(shape))
