"""What gunpowder draws for a batch, without gunpowder's requests and batches, which would take a process of their own.

The nodes are those of training_pipeline. A request passes them from the targets to the volume; each draws with a seed
that follows from the number of nodes before it, and requests the region that it needs:

    targets          labels around the output, as far as LSDs and affinities reach
    ElasticAugment   the hull of a deformed box         SimpleAugment   the mirrored and transposed box
    RandomProvider   a volume                           RandomLocation  a place in it

Intensities are drawn on the way back, after the volume was read. Place, volume and all other numbers of batch i are
those of gunpowder for batch i; tests compare the patches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gunpowder as gp
import numpy as np

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box
from lsdflow_training.augmentation.cpu import source_box
from lsdflow_training.augmentation.description import Change, Dice, Region, Step, Turn, Warp, moved_seed
from lsdflow_training.augmentation.nodes import ElasticAugment, IntensityNode
from lsdflow_training.data.nodes import (
    MOVES_OF_THE_SEED,
    ApplyBackground,
    CompactIds,
    GrowBoundary,
    TrainedVoxels,
    as_box,
    as_vox3,
)
from lsdflow_training.data.pipeline import Keys
from lsdflow_training.data.random_location import RandomLocation
from lsdflow_training.data.volume_arrays import NAMES, VolumeArrays
from lsdflow_training.targets.lsd_node import AddLsdTargets

# They draw nothing; what they compute is made on the device.
WITHOUT_DRAW = (
    ApplyBackground, CompactIds, GrowBoundary, TrainedVoxels, AddLsdTargets, gp.AddAffinities, gp.BalanceLabels,
    gp.IntensityScaleShift,
)  # fmt: skip
MOVES_PER_NODE = 2  # of the seed: see description.moved_seed
Boxes = dict[str, Box]


@dataclass(frozen=True)
class Drawn:
    """Of one batch: the number of its volume, the boxes of its arrays in it, and the augmentation.

    labels_box: box of the labels (and of the mask) after all steps, relative to the output's begin.
    """

    volume: int
    boxes: Boxes
    steps: tuple[Step, ...]
    changes: tuple[Change, ...]
    labels_box: Box


class Drawer:
    """Draws batches as a pipeline of training_pipeline does. Raises ConfigError for a node unknown to the device."""

    def __init__(self, pipeline: gp.Pipeline, keys: Keys, request: gp.BatchRequest) -> None:
        self._nodes: list[Any] = []
        while not isinstance(pipeline.output, gp.RandomProvider):
            self._nodes.append(_known(pipeline.output))
            (pipeline,) = pipeline.children
        self._choice: list[float] = pipeline.output.probabilities
        locations: list[RandomLocation] = [branch.output for branch in pipeline.children]
        self._places = [location.places for location in locations]
        self.arrays: list[VolumeArrays] = [places.arrays for places in self._places]
        output = as_box(request[keys.labels].roi)
        around = output
        for node in self._nodes:
            around = Box.hull((around, _context(node, output)))
        self._wanted: Boxes = {"raw": as_box(request[keys.raw].roi), "labels": around}
        self._labels_box = around.translate(as_vox3([-b for b in output.begin_vox]))

    def draw(self, seed: int) -> Drawn:
        """What gunpowder draws for a request with this seed. Raises BadData if there is no place for a patch."""
        boxes, changing = self._wanted, []
        steps: list[Step] = []
        for node in self._nodes:
            dice = Dice(None, None) if isinstance(node, WITHOUT_DRAW) else Dice.of(seed)
            if isinstance(node, ElasticAugment):
                if dice.plain.random() <= node.p:
                    boxes, warp = _draw_warp(node, boxes, dice)
                    steps.append(warp)
            elif isinstance(node, gp.SimpleAugment):
                boxes, turn = _draw_turn(node, boxes, dice)
                steps.append(turn)
            elif isinstance(node, IntensityNode) and not node.skips(dice):
                changing.append((node, moved_seed(seed, 2)))
            seed = moved_seed(seed, MOVES_PER_NODE)
        volume = int(Dice.of(seed).arrays.choice(len(self._places), p=self._choice))
        shift = self._places[volume].draw(boxes["labels"], Dice.of(moved_seed(seed, 1)))
        after = Dice.of(moved_seed(seed, 2 + MOVES_OF_THE_SEED))
        shape = self._wanted["raw"].shape_vox
        return Drawn(
            volume=volume,
            boxes={name: boxes[name if name == "raw" else "labels"].translate(shift) for name in NAMES},
            steps=tuple(reversed(steps)),
            changes=tuple(node.drawn(shape, own, after) for node, own in reversed(changing)),
            labels_box=self._labels_box,
        )


def _known(node: Any) -> Any:
    """The node. Raises ConfigError for one that is not implemented on the device."""
    kind = type(node)  # exactly: a subclass may do more than these; all that IntensityNodes do is drawn
    if kind in (*WITHOUT_DRAW, ElasticAugment, gp.SimpleAugment) or issubclass(kind, IntensityNode):
        return node
    raise ConfigError(
        'pipeline = "gpu" cannot do all that this training asks for',
        where="pipeline",
        found=kind.__name__,
        fix='use pipeline = "gunpowder"',
    )


def _context(node: Any, output: Box) -> Box:
    """The labels that a node needs for its targets at the output."""
    if isinstance(node, AddLsdTargets):
        return output.grow(node.context_vox)
    if isinstance(node, gp.AddAffinities):
        offsets = np.vstack([np.zeros((1, 3), np.int64), node.affinity_neighborhood])
        return output.grow(as_vox3(-offsets.min(0)), as_vox3(offsets.max(0)))
    return output


def _draw_warp(node: ElasticAugment, wanted: Boxes, dice: Dice) -> tuple[Boxes, Warp]:
    """The boxes that the node needs, and the deformation that it draws; as ElasticAugment.prepare."""
    whole = Box.hull(wanted.values())
    warp = node.draw(whole.shape_vox, dice)
    needed, regions = {}, {}
    for name, box in wanted.items():
        target = box.translate(as_vox3([-b for b in whole.begin_vox]))
        # gunpowder reads the hull of what a node needs and what is requested from it
        source = Box.hull((source_box(warp, target), target))
        regions[name] = Region(target, source.begin_vox)
        needed[name] = source.translate(whole.begin_vox)
    return needed, replace(warp, regions=regions)


def _draw_turn(node: gp.SimpleAugment, wanted: Boxes, dice: Dice) -> tuple[Boxes, Turn]:
    """The boxes that the node needs, mirrored axes (z, y, x) and the transposition; as SimpleAugment.prepare."""
    dice.plain.random()  # whether the node is skipped: it never is
    z, y, x = (dice.plain.random() < 0.5 for _ in range(3))
    movable = node.transpose_only or [0, 1, 2]
    order, back = [0, 1, 2], [0, 1, 2]
    for axis, other in zip(movable, dice.plain.sample(movable, k=len(movable)), strict=True):
        order[axis] = other
    for axis, other in enumerate(order):
        back[other] = axis
    turned = _transposed(wanted, back)
    whole = Box.hull(turned.values())
    return {name: _mirrored(box, whole, (z, y, x)) for name, box in turned.items()}, Turn((z, y, x), as_vox3(order))


def _transposed(wanted: Boxes, order: list[int]) -> Boxes:
    """The boxes with their axes exchanged around the middle of their hull."""
    whole = Box.hull(wanted.values())
    middle = [b + n // 2 for b, n in zip(whole.begin_vox, whole.shape_vox, strict=True)]
    return {
        name: Box(
            as_vox3([m - (middle[axis] - box.begin_vox[axis]) for m, axis in zip(middle, order, strict=True)]),
            as_vox3([box.shape_vox[axis] for axis in order]),
        )
        for name, box in wanted.items()
    }


def _mirrored(box: Box, whole: Box, mirror: tuple[bool, bool, bool]) -> Box:
    sides = zip(mirror, box.begin_vox, box.end_vox, whole.begin_vox, whole.end_vox, strict=True)
    return Box(as_vox3([first + last - end if m else begin for m, begin, end, first, last in sides]), box.shape_vox)
