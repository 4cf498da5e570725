"""The block work of evaluate: fragments x truth of every block, counted by workers, added up by the coordinator.

    block --workers--> overlaps_roi, overlaps_threshold_roi, overlaps_region_<name> (rows) --add up--> one table each

The blocks tile the smallest box around the regions, on the fragments' own chunks; a table holds only the voxels of a
block that lie in its region, so the sums are those of the regions however they are cut. Voxels of failed blocks that
were accepted count as not labelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.graph import NOT_LABELLED, Overlaps
from lsdflow_contract.manifest import read_manifest, work_key
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.scores.scored_regions import Region, scored_regions
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.io.target import Truth, open_truth, target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume

# Stages whose failed blocks, with those of their inputs, are left out of the scores.
SCORED_STAGES = ("watershed", "agglomerate", "segment")


@dataclass(frozen=True)
class CountedVolumes:
    """What is counted: fragments and truth on the target's grid, and the regions where they count."""

    grid: Geometry
    fragments: Volume
    truth: Truth
    regions: dict[str, Region]


def counting_task(experiment: Experiment) -> BlockTask | None:
    """The counting of what the experiment holds now; none without truth.

    Raises MissingInput if prepare or watershed have not finished, ConfigError for a region outside the data.
    """
    config, grid = experiment.table(STAGE, EvaluateConfig), target_grid(experiment)
    if open_truth(experiment, config.truth_dataset, grid) is None:
        return None
    volumes = open_counted(experiment)
    plan = _plan(config, grid, volumes.fragments, volumes.regions)
    inputs = {stage: read_manifest(experiment.layout, stage).identity for stage in ("prepare", "watershed")}
    parameters = {**_parameters(config, volumes.regions, plan), **_holes(volumes.truth)}
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=work_key(STAGE, parameters, inputs),
        config=parameters,
        inputs=inputs,
        plan=plan,
        outputs={},
        open=partial(_opened, volumes),
    )


def open_counted(experiment: Experiment) -> CountedVolumes:
    """Open what is counted. MissingInput if a volume is not there, ConfigError for a region outside the data."""
    config, grid = experiment.table(STAGE, EvaluateConfig), target_grid(experiment)
    failed = failed_blocks_of_results(experiment.layout, SCORED_STAGES)
    truth = open_truth(experiment, config.truth_dataset, grid, failed)
    if truth is None:
        raise MissingInput("there is no truth", where=experiment.layout.target_volume)
    watershed = read_manifest(experiment.layout, "watershed")
    fragments = open_volume(*watershed.output_array(experiment.layout, "fragments"), grid)
    both = truth.labels.box.intersect(fragments.box)
    return CountedVolumes(grid, fragments, truth, scored_regions(experiment, config, grid, both))


def counted(task: BlockTask, region: str) -> Contingency:
    """The finished table of a region, in the memory of its distinct pairs. BadData for a lost or damaged block."""
    total = ContingencySum()
    for number in range(len(task.plan)):
        total.add(table_of(task.rag_store.read_overlaps(task.key, region, number)))
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


def _plan(config: EvaluateConfig, grid: Geometry, fragments: Volume, regions: Mapping[str, Region]) -> BlockPlan:
    shape = fragments.chunk_shape_vox
    if config.block_shape is not None:
        shape = config.block_shape.to_vox(grid.voxel_size_nm, "evaluate.block_shape")
        if min(shape) < 1:
            raise ConfigError("evaluate.block_shape is empty", wanted="at least 1 voxel along each axis", found=shape)
    begins = np.array([region.box.begin_vox for region in regions.values()])
    ends = np.array([region.box.end_vox for region in regions.values()])
    first = np.array(fragments.box.begin_vox)
    begin = first + (begins.min(axis=0) - first) // shape * shape
    return BlockPlan(Box.from_bounds(_vox3(begin), _vox3(ends.max(axis=0))), shape)


def _vox3(values: np.ndarray[Any, np.dtype[np.int64]]) -> Vox3:
    z, y, x = (int(v) for v in values)
    return z, y, x


def _parameters(config: EvaluateConfig, regions: Mapping[str, Region], plan: BlockPlan) -> dict[str, Any]:
    """What decides the rows of every block."""
    total = {"begin_vox": list(plan.total.begin_vox), "shape_vox": list(plan.total.shape_vox)}
    return {
        "truth_dataset": config.truth_dataset,
        "regions": {name: region.as_dict() for name, region in regions.items()},
        "total": total,
        "block_shape_vox": list(plan.write_shape_vox),
    }


def _holes(truth: Truth) -> dict[str, Any]:
    """The holes that are left out; nothing without any, as before there were holes."""
    holes = [{"begin_vox": list(hole.begin_vox), "shape_vox": list(hole.shape_vox)} for hole in truth.holes]
    return {"holes": holes} if holes else {}


@contextmanager
def _opened(volumes: CountedVolumes) -> Iterator[BlockFunction]:
    def count_block(block: Block) -> BlockOutput:
        found = {name: overlaps_of(_count(volumes, block.write, region)) for name, region in volumes.regions.items()}
        return BlockOutput(overlaps=found, facts={f"pairs_{name}": len(rows) for name, rows in found.items()})

    yield count_block


def _count(volumes: CountedVolumes, write: Box, region: Region) -> Contingency:
    box = write.intersect(region.box)
    if box.is_empty:
        return ContingencySum().table()
    return contingency(volumes.fragments.read(box), region.truth_in(volumes.truth, box))
