"""Where the two largest parts of each fault meet, found block by block by the workers; no volume is held.

    1. every block tells, of the faults whose parts it holds: the box of each part in it, and if the parts meet within
       reach, their distance, how many voxels of the first lie so near, the sum of these voxels and their box
    2. the smallest distance of all blocks is that of the parts; the sums give the middle of where they meet
    3. the place is the voxel of the first part, so near to the second, that lies nearest to that middle: the boxes
       around the middle are read again, the nearest first, until no other can hold a nearer one
    4. parts that nowhere come within reach: pairs of blocks, the nearest boxes first, until no pair can be nearer;
       of equal voxels the first in z, y, x

A part lies where its segment and its truth label both are, inside the region. Sums and minima do not depend on how the
volume is cut, so neither does the place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.lut import Lut
from lsdflow_contract.manifest import work_key
from lsdflow_evaluate.config import STAGE
from lsdflow_evaluate.faults.meeting import meeting_of, most_central
from lsdflow_evaluate.faults.parts import (
    FIRST,
    SECOND,
    Labels,
    Parts,
    bounds_of,
    box_of,
    distance_from_nm,
    gap_nm,
    meeting_inside,
    surface_in,
    vox3,
)
from lsdflow_evaluate.faults.ranking import Fault
from lsdflow_evaluate.scores.counting import open_counted, table_of
from lsdflow_evaluate.scores.later_works import LaterWork, leave_work
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask

PART = "fault places"
# Parts nearer than this meet: membranes without a label between two cells are thinner.
REACH_SHORTEST_EDGES, REACH_LONGEST_EDGES = 8, 4


@dataclass(frozen=True)
class Place:
    """A voxel of the first part of a fault, `distance_nm` from the second (between voxel centres)."""

    voxel: Vox3
    distance_nm: float


def places_task(counting: BlockTask, faults: Sequence[tuple[str, Fault]], lut: Lut, reach_nm: float) -> BlockTask:
    """The search for the places of (region, fault) in the blocks of the counting; its files are left for workers."""
    cells = np.array([[f.first.segment, f.first.truth, f.second.segment, f.second.truth] for _, f in faults], np.uint64)
    guilty = np.isin(lut.segments, np.unique(cells[:, ::2]))
    arrays = {"cells": cells, "fragments": lut.fragments[guilty], "segments": lut.segments[guilty]}
    parameters = {
        "part": PART,
        "counting": counting.key,
        "regions": [region for region, _ in faults],
        "reach_nm": reach_nm,
        "arrays": hash_of([hash_of_array(values) for values in arrays.values()]),
    }
    key = work_key(STAGE, parameters, dict(counting.inputs))
    return places_task_of(counting, leave_work(counting.experiment, key, parameters, arrays))


def places_task_of(counting: BlockTask, work: LaterWork) -> BlockTask:
    """The same from the files that were left."""
    voxel_size = open_counted(counting.experiment).grid.voxel_size_nm
    z, y, x = (int(np.ceil(work.parameters["reach_nm"] / size)) for size in voxel_size)
    return BlockTask(
        stage=STAGE,
        experiment=counting.experiment,
        key=work.key,
        config=work.parameters,
        inputs=counting.inputs,
        plan=BlockPlan(counting.plan.total, counting.plan.write_shape_vox, (z, y, x)),
        outputs={},
        open=partial(_opened, counting, work),
    )


def reach_of(voxel_size_nm: Nm3) -> float:
    """How far apart (nm) parts may lie that count as meeting."""
    return max(REACH_SHORTEST_EDGES * min(voxel_size_nm), REACH_LONGEST_EDGES * max(voxel_size_nm))


def places_of(task: BlockTask, work: LaterWork) -> list[Place | None]:
    """The place of each fault, from the finished blocks; none only if a part has no voxel."""
    parts = _parts(task.experiment, work)
    told = [_Told() for _ in parts.cells]
    for record in task.marks.records().values():
        for name, facts in record["facts"].get("parts", {}).items():
            told[int(name)].add(facts)
    reach = float(work.parameters["reach_nm"])
    return [_place(parts, fault, found, reach) for fault, found in enumerate(told)]


@dataclass(frozen=True)
class _Met:
    """Where the parts meet in one block: the smallest distance, how many voxels have it, their sums, their box."""

    distance_nm: float
    voxels: int
    sums: list[int]
    box: Box


class _Told:
    """What the blocks told of one fault."""

    def __init__(self) -> None:
        self.boxes: tuple[list[Box], list[Box]] = ([], [])
        self.met: list[_Met] = []

    def add(self, facts: Mapping[str, Any]) -> None:
        for side, name in ((FIRST, "first"), (SECOND, "second")):
            if name in facts:
                self.boxes[side].append(box_of(facts[name]))
        if "met" in facts:
            distance, voxels, *sums = facts["met"]
            self.met.append(_Met(float(distance), int(voxels), [int(s) for s in sums[:3]], box_of(sums[3:])))


@contextmanager
def _opened(counting: BlockTask, work: LaterWork) -> Iterator[BlockFunction]:
    parts = _parts(counting.experiment, work)
    reach = float(work.parameters["reach_nm"])

    def look(block: Block) -> BlockOutput:
        told: dict[str, dict[str, Any]] = {}
        for region, faults in _by_region(parts, _present(parts, counting, block)):
            box = block.write.intersect(parts.volumes.regions[region].box)
            around = block.read.intersect(parts.volumes.regions[region].box)
            labels = parts.read(faults[0], around)
            told |= {str(fault): _look_at(parts, fault, (box, around), labels, reach) for fault in faults}
        return BlockOutput(facts={"parts": told})

    yield look


def _present(parts: Parts, counting: BlockTask, block: Block) -> list[int]:
    """The faults of which a part lies in the block, by the rows that were counted there."""
    found = []
    for region in dict.fromkeys(parts.regions):
        table = table_of(counting.rag_store.read_overlaps(counting.key, region, block.number))
        there = set(zip(parts.segments_of(table.labels).tolist(), table.truths.tolist(), strict=True))
        for fault, cells in enumerate(parts.cells.tolist()):
            if parts.regions[fault] == region and there & {tuple(cells[:2]), tuple(cells[2:])}:
                found.append(fault)
    return found


def _by_region(parts: Parts, faults: list[int]) -> Iterator[tuple[str, list[int]]]:
    for region, group in itertools.groupby(faults, lambda fault: parts.regions[fault]):
        yield region, list(group)


def _look_at(
    parts: Parts,
    fault: int,
    boxes: tuple[Box, Box],
    labels: Labels,
    reach: float,
) -> dict[str, Any]:
    """What a block tells of a fault; boxes: what is the block's own, and what was read."""
    own, around = boxes
    told: dict[str, Any] = {}
    for side, name in ((FIRST, "first"), (SECOND, "second")):
        inside = own.slices(around.begin_vox)
        mask = parts.mask(fault, side, (labels[0][inside], labels[1][inside]))
        if mask.any():
            told[name] = bounds_of(np.argwhere(mask) + np.array(own.begin_vox))
    if "first" in told:
        first = box_of(told["first"])
        near = first.grow(parts.within(reach)).intersect(around)
        inside = near.slices(around.begin_vox)
        met = meeting_inside(parts, fault, (first, near), (labels[0][inside], labels[1][inside]), reach)
        if met is not None:
            told["met"] = [met.distance_nm, len(met.voxels), *met.voxels.sum(axis=0).tolist(), *bounds_of(met.voxels)]
    return told


def _place(parts: Parts, fault: int, told: _Told, reach: float) -> Place | None:
    if not told.met:
        return _far_apart(parts, fault, told.boxes)
    distance = min(met.distance_nm for met in told.met)
    nearest = [met for met in told.met if met.distance_nm == distance]
    center = np.sum([met.sums for met in nearest], axis=0) / sum(met.voxels for met in nearest)
    region, size = parts.volumes.regions[parts.regions[fault]].box, parts.voxel_size_nm()
    at_least = [distance_from_nm(met.box, _point(center), size) for met in nearest]
    best: tuple[float, list[int]] | None = None
    for lower, place in sorted(zip(at_least, range(len(nearest)), strict=True)):
        if best is not None and lower > best[0] + 0.001:
            break
        own = nearest[place].box
        around = own.grow(parts.within(reach)).intersect(region)
        met = meeting_inside(parts, fault, (own, around), parts.read(fault, around), reach)
        if met is not None:
            found = most_central(met.voxels, center, size)
            best = found if best is None else min(best, found)
    return None if best is None else Place(vox3(best[1]), distance)


def _far_apart(parts: Parts, fault: int, boxes: tuple[list[Box], list[Box]]) -> Place | None:
    """The voxel of the first part that is nearest to the second, of all pairs of boxes that can hold it."""
    size = parts.voxel_size_nm()
    best: tuple[float, list[int]] | None = None
    rows = [(min(gap_nm(box, other, size) for other in boxes[SECOND]), n) for n, box in enumerate(boxes[FIRST])]
    for row_gap, n in sorted(rows) if boxes[SECOND] else ():
        if best is not None and row_gap > best[0] + 0.001:
            break
        box = boxes[FIRST][n]
        first = surface_in(parts, fault, FIRST, box)
        for gap, other in sorted(((gap_nm(box, b, size), m) for m, b in enumerate(boxes[SECOND]))):
            if best is not None and gap > best[0] + 0.001:
                break
            met = meeting_of(first, surface_in(parts, fault, SECOND, boxes[SECOND][other]), size)
            if met is not None:
                found = (met.distance_nm, met.voxels[np.lexsort(met.voxels.T[::-1])[0]].tolist())
                best = found if best is None else min(best, found)
    return None if best is None else Place(vox3(best[1]), best[0])


def _parts(experiment: Experiment, work: LaterWork) -> Parts:
    names = ("cells", "fragments", "segments")
    return Parts(open_counted(experiment), work.parameters["regions"], *(work.array(name) for name in names))


def _point(center: NDArray[np.float64]) -> tuple[float, float, float]:
    z, y, x = (float(c) for c in center)
    return z, y, x
