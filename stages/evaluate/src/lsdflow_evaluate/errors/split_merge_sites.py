"""Where the two largest parts of each split or merge touch, found block by block by the workers; no volume is held.

    1. every block reports, of the errors whose parts it holds: the box of each part in it, and if the parts touch
       within reach, their distance, how many voxels of the first are so near, the sum of these voxels and their box
    2. the smallest distance of all blocks is that of the parts; the sums give the middle of where they touch
    3. the site is the voxel of the first part, so near to the second, that is nearest to that middle: the boxes
       around the middle are read again, the nearest first, until no other can hold a nearer one
    4. parts that nowhere come within reach: pairs of blocks, the nearest boxes first, until no pair can be nearer;
       of equal voxels the first in z, y, x

Sums and minima do not depend on how the volume is cut, so neither does the site.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.lut import Lut
from lsdflow_evaluate.errors.contacts import (
    FIRST,
    SECOND,
    Labels,
    Parts,
    bounds_of,
    box_of,
    contact_inside,
    contact_of,
    distance_from_nm,
    gap_nm,
    most_central,
    surface_in,
)
from lsdflow_evaluate.errors.ranking import SplitOrMerge
from lsdflow_evaluate.scores.counting import Rows, table_of, vox3
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput

# Part of the key of the pass.
PART = "fault places"
# Parts nearer than this touch: membranes without a label between two cells are thinner.
REACH_SHORTEST_EDGES, REACH_LONGEST_EDGES = 8, 4


@dataclass(frozen=True)
class Site:
    """A voxel of the first part of a split or merge, `distance_nm` from the second (between voxel centres)."""

    voxel: Vox3
    distance_nm: float


def listed(error: SplitOrMerge, site: Site | None, grid: Geometry) -> dict[str, Any]:
    """A split or merge with its position, for scores.json."""
    row = asdict(error)
    if site is None:
        return row
    corner = grid.position_nm(site.voxel)
    middle = [c + s / 2 for c, s in zip(corner, grid.voxel_size_nm, strict=True)]
    return row | {"position_nm": middle, "position_vox": list(site.voxel), "distance_nm": site.distance_nm}


def arrays_of(errors: Sequence[SplitOrMerge], lut: Lut) -> dict[str, NDArray[np.uint64]]:
    """What the workers need of the errors: see `Parts`."""
    cells = np.array([[e.first.segment, e.first.truth, e.second.segment, e.second.truth] for e in errors], np.uint64)
    is_listed = np.isin(lut.segments, np.unique(cells[:, ::2]))
    return {"cells": cells, "fragments": lut.fragments[is_listed], "segments": lut.segments[is_listed]}


def reach_of(voxel_size_nm: Nm3) -> float:
    """How far apart (nm) parts may be that count as touching."""
    return max(REACH_SHORTEST_EDGES * min(voxel_size_nm), REACH_LONGEST_EDGES * max(voxel_size_nm))


def sites_of(parts: Parts, records: Iterable[Mapping[str, Any]], reach_nm: float) -> list[Site | None]:
    """The site of each error, from the records of the finished blocks; None only if a part has no voxel."""
    reports = [_Reports() for _ in parts.cells]
    for record in records:
        for name, facts in record["facts"].get("parts", {}).items():
            reports[int(name)].add(facts)
    return [_site(parts, error, found, reach_nm) for error, found in enumerate(reports)]


@dataclass(frozen=True)
class _Touch:
    """Where the parts touch in one block: the smallest distance, how many voxels have it, their sums, their box."""

    distance_nm: float
    voxels: int
    sums: list[int]
    box: Box


class _Reports:
    """What the blocks reported of one error."""

    def __init__(self) -> None:
        self.boxes: tuple[list[Box], list[Box]] = ([], [])
        self.touches: list[_Touch] = []

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add what one block reported: the boxes of both sides, and where they touch."""
        for side, name in ((FIRST, "first"), (SECOND, "second")):
            if name in facts:
                self.boxes[side].append(box_of(facts[name]))
        if "met" in facts:
            distance, voxels, *sums = facts["met"]
            self.touches.append(_Touch(float(distance), int(voxels), [int(s) for s in sums[:3]], box_of(sums[3:])))


@contextmanager
def search_blocks(parts: Parts, counted: Rows, reach_nm: float) -> Iterator[BlockFunction]:
    """The block function of the search; `counted`: the rows of the counting, which show what a block holds."""

    def search(block: Block) -> BlockOutput:
        """Report for each error with voxels in the block where its two sides are and touch."""
        reports: dict[str, dict[str, Any]] = {}
        for region, errors in itertools.groupby(_present(parts, counted, block), lambda e: parts.regions[e]):
            whole = parts.volumes.regions[region].box
            own, around = block.write.intersect(whole), block.read.intersect(whole)
            own_errors = list(errors)
            labels = parts.read(own_errors[0], around)
            reports |= {str(error): _report(parts, error, own, around, labels, reach_nm) for error in own_errors}
        return BlockOutput(facts={"parts": reports})

    yield search


def _present(parts: Parts, counted: Rows, block: Block) -> list[int]:
    """The errors of which a part is in the block, by the rows that were counted there."""
    found = []
    for region in dict.fromkeys(parts.regions):
        table = table_of(counted(region, block.number))
        there = set(zip(parts.segments_of(table.labels).tolist(), table.truths.tolist(), strict=True))
        for error, cells in enumerate(parts.cells.tolist()):
            if parts.regions[error] == region and there & {tuple(cells[:2]), tuple(cells[2:])}:
                found.append(error)
    return found


def _report(parts: Parts, error: int, own: Box, around: Box, labels: Labels, reach_nm: float) -> dict[str, Any]:
    """What a block reports of an error; `own`: the box of the block, `around`: the box of `labels`."""
    report: dict[str, Any] = {}
    for side, name in ((FIRST, "first"), (SECOND, "second")):
        inside = own.slices(around.begin_vox)
        mask = parts.mask(error, side, (labels[0][inside], labels[1][inside]))
        if mask.any():
            report[name] = bounds_of(np.argwhere(mask) + np.array(own.begin_vox))
    if "first" in report:
        first = box_of(report["first"])
        near = first.grow(parts.within(reach_nm)).intersect(around)
        inside = near.slices(around.begin_vox)
        touch = contact_inside(parts, error, first, near, (labels[0][inside], labels[1][inside]), reach_nm)
        if touch is not None:
            sums = touch.voxels.sum(axis=0).tolist()
            report["met"] = [touch.distance_nm, len(touch.voxels), *sums, *bounds_of(touch.voxels)]
    return report


def _site(parts: Parts, error: int, found: _Reports, reach_nm: float) -> Site | None:
    if not found.touches:
        return _far_apart(parts, error, found.boxes)
    distance = min(met.distance_nm for met in found.touches)
    nearest = [met for met in found.touches if met.distance_nm == distance]
    center = np.sum([met.sums for met in nearest], axis=0) / sum(met.voxels for met in nearest)
    region, size = parts.volumes.regions[parts.regions[error]].box, parts.voxel_size_nm
    at_least = [distance_from_nm(met.box, center, size) for met in nearest]
    best: tuple[float, list[int]] | None = None
    for lower, number in sorted(zip(at_least, range(len(nearest)), strict=True)):
        if best is not None and lower > best[0] + 0.001:
            break
        own = nearest[number].box
        around = own.grow(parts.within(reach_nm)).intersect(region)
        touch = contact_inside(parts, error, own, around, parts.read(error, around), reach_nm)
        if touch is not None:
            candidate = most_central(touch.voxels, center, size)
            best = candidate if best is None else min(best, candidate)
    return None if best is None else Site(vox3(best[1]), distance)


def _far_apart(parts: Parts, error: int, boxes: tuple[list[Box], list[Box]]) -> Site | None:
    """The voxel of the first part that is nearest to the second, of all pairs of boxes that can hold it."""
    size = parts.voxel_size_nm
    best: tuple[float, list[int]] | None = None
    rows = [(min(gap_nm(box, other, size) for other in boxes[SECOND]), n) for n, box in enumerate(boxes[FIRST])]
    for row_gap, n in sorted(rows) if boxes[SECOND] else ():
        if best is not None and row_gap > best[0] + 0.001:
            break
        box = boxes[FIRST][n]
        first = surface_in(parts, error, FIRST, box)
        for gap, other in sorted(((gap_nm(box, b, size), m) for m, b in enumerate(boxes[SECOND]))):
            if best is not None and gap > best[0] + 0.001:
                break
            touch = contact_of(first, surface_in(parts, error, SECOND, boxes[SECOND][other]), size)
            if touch is not None:
                found = (touch.distance_nm, touch.voxels[np.lexsort(touch.voxels.T[::-1])[0]].tolist())
                best = found if best is None else min(best, found)
    return None if best is None else Site(vox3(best[1]), best[0])
