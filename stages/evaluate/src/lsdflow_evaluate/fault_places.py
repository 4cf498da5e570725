"""Where the two largest parts of each fault meet, found block by block by the workers; no volume is held.

    1. every block tells, of the faults whose parts it holds: the box of each part in it, and if the parts meet within
       reach, their distance, how many voxels of the first lie so near, and the sum of these voxels
    2. the smallest distance of all blocks is that of the parts; the sums give the middle of where they meet
    3. the place is the voxel of the first part, so near to the second, that lies nearest to that middle: the blocks
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
from lsdflow_evaluate.counting import STAGE, CountedVolumes, open_counted, table_of
from lsdflow_evaluate.faults import Fault
from lsdflow_evaluate.later_works import LaterWork, leave_work
from lsdflow_evaluate.meeting import meeting_of, most_central, surface
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block, BlockPlan

PART = "fault places"
# Parts nearer than this meet: membranes without a label between two cells are thinner.
REACH_SHORTEST_EDGES, REACH_LONGEST_EDGES = 8, 4
# What a fragment of no guilty segment is called; no id of ours is so large.
OTHER = np.uint64(2**64 - 1)
FIRST, SECOND = 0, 1


@dataclass(frozen=True)
class Place:
    """A voxel of the first part of a fault, `distance_nm` from the second (between voxel centres)."""

    voxel: Vox3
    distance_nm: float


@dataclass(frozen=True)
class Parts:
    """The faults' parts as labels: reads them from the volumes, a box at a time."""

    volumes: CountedVolumes
    regions: Sequence[str]
    cells: NDArray[np.uint64]
    fragments: NDArray[np.uint64]
    segments: NDArray[np.uint64]

    def voxel_size_nm(self) -> Nm3:
        """Of the target."""
        return self.volumes.grid.voxel_size_nm

    def segments_of(self, fragments: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The guilty segment of each fragment; 0 stays 0, all else is OTHER."""
        if not len(self.fragments):
            return np.where(fragments == 0, np.uint64(0), OTHER)
        place = np.minimum(np.searchsorted(self.fragments, fragments), len(self.fragments) - 1)
        known = np.where(self.fragments[place] == fragments, self.segments[place], OTHER)
        return np.where(fragments == 0, np.uint64(0), known)

    def read(self, fault: int, box: Box) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Segments and truth labels of a box inside the fault's region."""
        region = self.volumes.regions[self.regions[fault]]
        return self.segments_of(self.volumes.fragments.read(box)), region.truth_in(self.volumes.truth, box)

    def mask(self, fault: int, side: int, labels: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> NDArray[np.bool_]:
        """Where the first or the second part of a fault lies in what was read."""
        segment, truth = self.cells[fault, 2 * side : 2 * side + 2]
        found: NDArray[np.bool_] = (labels[0] == segment) & (labels[1] == truth)
        return found


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
    for number, record in task.marks.records().items():
        for name, facts in record["facts"].get("parts", {}).items():
            told[int(name)].add(number, facts)
    return [_place(parts, fault, found, task.plan, work) for fault, found in enumerate(told)]


class _Told:
    """What the blocks told of one fault."""

    def __init__(self) -> None:
        self.boxes: tuple[list[Box], list[Box]] = ([], [])
        self.met: list[tuple[float, int, int, list[int]]] = []

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        for side, name in ((FIRST, "first"), (SECOND, "second")):
            if name in facts:
                self.boxes[side].append(Box.from_bounds(_vox3(facts[name][:3]), _vox3(facts[name][3:])))
        if "met" in facts:
            distance, voxels, *sums = facts["met"]
            self.met.append((float(distance), number, int(voxels), [int(s) for s in sums]))


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
    labels: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    reach: float,
) -> dict[str, Any]:
    """What a block tells of a fault; boxes: what is the block's own, and what was read."""
    own, around = boxes
    first, second = _own(parts.mask(fault, FIRST, labels), own, around), parts.mask(fault, SECOND, labels)
    told: dict[str, Any] = {}
    for name, mask in (("first", first), ("second", _own(second, own, around))):
        if mask.any():
            told[name] = _bounds(mask, around)
    met = meeting_of(surface(first), surface(second), parts.voxel_size_nm(), reach) if "first" in told else None
    if met is not None:
        voxels = met.voxels + np.array(around.begin_vox)
        told["met"] = [met.distance_nm, len(voxels), *voxels.sum(axis=0).tolist()]
    return told


def _place(parts: Parts, fault: int, told: _Told, plan: BlockPlan, work: LaterWork) -> Place | None:
    if not told.met:
        return _far_apart(parts, fault, told.boxes)
    distance = min(met[0] for met in told.met)
    nearest = [met for met in told.met if met[0] == distance]
    center = np.sum([met[3] for met in nearest], axis=0) / sum(met[2] for met in nearest)
    region, size = parts.volumes.regions[parts.regions[fault]].box, parts.voxel_size_nm()
    blocks = [plan.block(number) for _, number, _, _ in nearest]
    at_least = [_distance_nm(block.write.intersect(region), _point(center), size) for block in blocks]
    best: tuple[float, list[int]] | None = None
    for lower, place in sorted(zip(at_least, range(len(blocks)), strict=True)):
        if best is not None and lower > best[0] + 0.001:
            break
        own, around = (box.intersect(region) for box in (blocks[place].write, blocks[place].read))
        labels = parts.read(fault, around)
        first = surface(_own(parts.mask(fault, FIRST, labels), own, around))
        met = meeting_of(first, surface(parts.mask(fault, SECOND, labels)), size, float(work.parameters["reach_nm"]))
        if met is not None:
            found = most_central(met.voxels + np.array(around.begin_vox), center, size)
            best = found if best is None else min(best, found)
    return None if best is None else Place(_vox3(best[1]), distance)


def _far_apart(parts: Parts, fault: int, boxes: tuple[list[Box], list[Box]]) -> Place | None:
    """The voxel of the first part that is nearest to the second, of all pairs of boxes that can hold it."""
    size = parts.voxel_size_nm()
    best: tuple[float, list[int]] | None = None
    rows = [(min(_gap_nm(box, other, size) for other in boxes[SECOND]), n) for n, box in enumerate(boxes[FIRST])]
    for row_gap, n in sorted(rows) if boxes[SECOND] else ():
        if best is not None and row_gap > best[0] + 0.001:
            break
        box = boxes[FIRST][n]
        first = _surface_in(parts, fault, FIRST, box)
        for gap, other in sorted(((_gap_nm(box, b, size), m) for m, b in enumerate(boxes[SECOND]))):
            if best is not None and gap > best[0] + 0.001:
                break
            met = meeting_of(first, _surface_in(parts, fault, SECOND, boxes[SECOND][other]), size)
            if met is not None:
                found = (met.distance_nm, met.voxels[np.lexsort(met.voxels.T[::-1])[0]].tolist())
                best = found if best is None else min(best, found)
    return None if best is None else Place(_vox3(best[1]), best[0])


def _surface_in(parts: Parts, fault: int, side: int, box: Box) -> NDArray[np.int64]:
    return np.asarray(surface(parts.mask(fault, side, parts.read(fault, box))) + np.array(box.begin_vox), np.int64)


def _own(mask: NDArray[np.bool_], own: Box, around: Box) -> NDArray[np.bool_]:
    kept = np.zeros_like(mask)
    inside = own.slices(around.begin_vox)
    kept[inside] = mask[inside]
    return kept


def _bounds(mask: NDArray[np.bool_], around: Box) -> list[int]:
    """First voxel and first voxel after the true ones."""
    at = [np.flatnonzero(mask.any(axis=tuple(a for a in range(3) if a != axis))) for axis in range(3)]
    lower = [int(a[0]) + b for a, b in zip(at, around.begin_vox, strict=True)]
    return lower + [int(a[-1]) + 1 + b for a, b in zip(at, around.begin_vox, strict=True)]


def _gap_nm(one: Box, other: Box, voxel_size_nm: Nm3) -> float:
    """The smallest distance that voxels of two boxes can have."""
    steps = [max(b - (e - 1), 0) for b, e in zip(other.begin_vox, one.end_vox, strict=True)]
    back = [max(b - (e - 1), 0) for b, e in zip(one.begin_vox, other.end_vox, strict=True)]
    return float(np.linalg.norm(np.maximum(steps, back) * np.array(voxel_size_nm)))


def _distance_nm(box: Box, point: tuple[float, float, float], voxel_size_nm: Nm3) -> float:
    lower, upper = np.array(box.begin_vox), np.array(box.end_vox) - 1
    outside = np.maximum(np.maximum(lower - point, np.array(point) - upper), 0.0)
    return float(np.linalg.norm(outside * np.array(voxel_size_nm)))


def _parts(experiment: Experiment, work: LaterWork) -> Parts:
    names = ("cells", "fragments", "segments")
    return Parts(open_counted(experiment), work.parameters["regions"], *(work.array(name) for name in names))


def _point(center: NDArray[np.float64]) -> tuple[float, float, float]:
    z, y, x = (float(c) for c in center)
    return z, y, x


def _vox3(values: Sequence[int]) -> Vox3:
    z, y, x = (int(v) for v in values)
    return z, y, x
