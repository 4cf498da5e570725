"""Fragments x truth of every block, in every region; and the regions: boxes of the target grid, perhaps with masks.

    block --workers--> overlaps_roi, overlaps_threshold_roi, overlaps_region_<name> (rows) --add up--> one table each

    roi             always: the numbers on top of scores.json
    border_<n>      the same without a border of n voxels: where the bits go (error_budget)
    threshold_roi   if asked for: the threshold is chosen there
    region_<name>   each of [evaluate.regions.<name>]

The blocks tile the smallest box around the regions, on the fragments' own chunks; a table holds only the voxels of a
block that are in its region, so the sums are those of the regions however they are cut. Voxels of failed blocks that
were accepted count as not labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.geometry import Box, Geometry, Lengths, Vox3, region_box
from lsdflow_contract.graph import NOT_LABELLED, Overlaps
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.target import Truth
from lsdflow_runtime.io.volumes import Volume, open_volume

# Widths of the borders that are left out, in voxels of the plane.
BORDERS_VOX = (1, 2, 3)
ROI, THRESHOLD_ROI, NAMED, BORDER = "roi", "threshold_roi", "region_", "border_"

# The rows that a block left in a collection of a finished pass: (collection, block number) -> rows.
Rows = Callable[[str, int], Overlaps]


@dataclass(frozen=True)
class Region:
    """A box of the target grid; where there is a mask, only the voxels where it is not 0. `dataset` names the mask."""

    box: Box
    mask: Volume | None = None
    dataset: str | None = None

    def truth_in(self, truth: Truth, box: Box) -> NDArray[np.uint64]:
        """True labels of `box`, 0 where the mask is 0: such voxels do not count."""
        return self.inside(truth.read(box), box)

    def inside(self, labels: NDArray[np.uint64], box: Box) -> NDArray[np.uint64]:
        """`labels` of `box`, 0 where the mask is 0."""
        if self.mask is None:
            return labels
        return np.where(self.mask.read(box, outside="zero") != 0, labels, np.uint64(0))

    def as_dict(self) -> dict[str, Any]:
        """For scores.json and for the key of the counting."""
        box = box_dict(self.box)
        return {**box, "mask": self.dataset} if self.dataset else box


@dataclass(frozen=True)
class CountedVolumes:
    """What is counted: fragments and truth on the target's grid, and the regions where they count."""

    grid: Geometry
    fragments: Volume
    truth: Truth
    regions: dict[str, Region]


def box_dict(box: Box) -> dict[str, Any]:
    """A box for JSON."""
    return {"begin_vox": list(box.begin_vox), "shape_vox": list(box.shape_vox)}


def scored_regions(config: EvaluateConfig, target: Path, grid: Geometry, both: Box) -> dict[str, Region]:
    """All regions by name, inside `both` (truth and fragments); `target`: the volume with the masks.

    Raises ConfigError for a region outside the data, MissingInput for a mask that does not exist.
    """
    size_nm = grid.voxel_size_nm
    found = {ROI: Region(region_box(config.roi, size_nm, both, "evaluate.roi"))}
    if config.threshold_roi is not None:
        found[THRESHOLD_ROI] = Region(region_box(config.threshold_roi, size_nm, both, "evaluate.threshold_roi"))
    for name, region in config.regions.items():
        box = region_box(region.box, size_nm, both, f"evaluate.regions.{name}")
        mask = None
        if region.mask is not None:
            if not (target / region.mask).exists():
                raise MissingInput(
                    f"the mask of region {name} is not there",
                    where=target / region.mask,
                    fix=f"give evaluate.regions.{name}.mask a dataset of the target volume",
                )
            mask = open_volume(target, region.mask, grid)
        found[f"{NAMED}{name}"] = Region(box, mask, region.mask)
    return found


def counting_plan(volumes: CountedVolumes, block_shape: Lengths | None) -> BlockPlan:
    """Blocks around all regions, of `block_shape` or the fragments' chunks. ConfigError (78) if the shape is empty."""
    shape = volumes.fragments.chunk_shape_vox
    if block_shape is not None:
        shape = block_shape.to_vox(volumes.grid.voxel_size_nm, "evaluate.block_shape")
        if min(shape) < 1:
            raise ConfigError("evaluate.block_shape is empty", wanted="at least 1 voxel along each axis", found=shape)
    begins = np.array([region.box.begin_vox for region in volumes.regions.values()])
    ends = np.array([region.box.end_vox for region in volumes.regions.values()])
    first = np.array(volumes.fragments.box.begin_vox)
    begin = first + (begins.min(axis=0) - first) // shape * shape
    return BlockPlan(Box.from_bounds(vox3(begin), vox3(ends.max(axis=0))), shape)


def counting_parameters(volumes: CountedVolumes, truth_dataset: str, plan: BlockPlan) -> dict[str, Any]:
    """What decides the rows of every block. Holes are named only where there are some, as before there were holes."""
    holes = [box_dict(hole) for hole in volumes.truth.holes]
    return {
        "truth_dataset": truth_dataset,
        "regions": {name: region.as_dict() for name, region in volumes.regions.items()},
        "total": box_dict(plan.total),
        "block_shape_vox": list(plan.write_shape_vox),
        "borders_vox": list(BORDERS_VOX),
        **({"holes": holes} if holes else {}),
    }


@contextmanager
def counting_blocks(volumes: CountedVolumes) -> Iterator[BlockFunction]:
    """The block function of the counting: a table of fragments x truth for each region."""

    def count(block: Block) -> BlockOutput:
        """Tables of a block for each region, and for the scored region without borders."""
        tables = {name: _count(volumes, block.write, region) for name, region in volumes.regions.items() if name != ROI}
        tables |= _count_scored(volumes, block.write)
        found = {name: overlaps_of(table) for name, table in tables.items()}
        return BlockOutput(overlaps=found, facts={f"pairs_{name}": len(rows) for name, rows in found.items()})

    yield count


def _count(volumes: CountedVolumes, write: Box, region: Region) -> Contingency:
    box = write.intersect(region.box)
    if box.is_empty:
        return ContingencySum().table()
    return contingency(volumes.fragments.read(box), region.truth_in(volumes.truth, box))


def _count_scored(volumes: CountedVolumes, write: Box) -> dict[str, Contingency]:
    """The tables of the scored region, whole and without each border, from one reading of the block."""
    region, truth = volumes.regions[ROI], volumes.truth
    borders = {ROI: 0, **{f"{BORDER}{n}": n for n in BORDERS_VOX}}
    box = write.intersect(region.box)
    if box.is_empty:
        return {name: ContingencySum().table() for name in borders}
    # Whether a voxel is at a border depends on the voxels around it, also beyond the block.
    widest = max(BORDERS_VOX)
    around = box.grow((0, widest, widest)).intersect(truth.labels.box)
    labels, own, fragments = truth.read(around), box.slices(around.begin_vox), volumes.fragments.read(box)
    kept = {name: region.inside(without_border(labels, n)[own], box) for name, n in borders.items()}
    return {name: contingency(fragments, inside) for name, inside in kept.items()}


def without_border(truth: NDArray[np.uint64], border_vox: int) -> NDArray[np.uint64]:
    """Truth u64 (z, y, x) with 0 at borders: in the plane (y, x), less than `border_vox` voxels from a change of label.

    Truth is drawn with a pen of some voxels, so voxels at a border say little about neurons. Distances are in squares:

        truth  1 1 1 1 2 2 2 2       border of 1:  1 1 1 0 0 2 2 2       of 2:  1 1 0 0 0 0 2 2
    """
    from scipy.ndimage import maximum_filter  # takes long to load, and not every command needs it

    if border_vox == 0:
        return truth
    change = np.zeros(truth.shape, bool)
    for axis in (1, 2):
        before = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
        after = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
        differs = truth[before] != truth[after]
        change[before] |= differs
        change[after] |= differs
    if border_vox > 1:
        change = maximum_filter(change, size=(1, 2 * border_vox - 1, 2 * border_vox - 1), mode="constant")
    return np.where(change, np.uint64(0), truth)


def counted(rows: Rows, blocks: int, region: str) -> Contingency:
    """The table of a region from the rows of all blocks, in the memory of its distinct pairs.

    Raises BadData for a lost or damaged block.
    """
    total = ContingencySum()
    for number in range(blocks):
        total.add(table_of(rows(region, number)))
    return total.table()


def overlaps_of(table: Contingency) -> Overlaps:
    """The rows of a table; voxels without a truth label are the last one."""
    rest = np.full(int(table.unlabelled_vox > 0), table.unlabelled_vox, np.uint64)
    nothing = np.full_like(rest, NOT_LABELLED)
    columns = ((table.labels, nothing), (table.truths, nothing), (table.voxels.astype(np.uint64), rest))
    return Overlaps(*(np.concatenate(column) for column in columns))


def table_of(overlaps: Overlaps) -> Contingency:
    """The table of rows that `overlaps_of` made."""
    labelled = overlaps.truth != NOT_LABELLED
    sizes = overlaps.size_vox.astype(np.int64)
    unlabelled = int(sizes[~labelled].sum())
    return Contingency(overlaps.fragment[labelled], overlaps.truth[labelled], sizes[labelled], unlabelled)


def vox3(values: Any) -> Vox3:
    """Three whole numbers of voxels, from any sequence or array."""
    z, y, x = (int(v) for v in values)
    return z, y, x
