"""The stage: computes volumes/fragments and the nodes of the region graph from affinities, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from lsdflow_contract.arrays import FRAGMENTS
from lsdflow_contract.errors import StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest, work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage
from lsdflow_runtime.engine.blockwise import run_task
from lsdflow_runtime.io.target import knows_target, target_grid
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.stores import store_facts
from lsdflow_watershed.block_fragments import BlockPlace, BlockRules, fragments_of_block, seamless_fragments_of_block
from lsdflow_watershed.blocking import check_sections, check_seed_ids, plan_blocks, voxels_after
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.fragments import FragmentRules
from lsdflow_watershed.inputs import WatershedInputs, note_mask, open_inputs, open_mask, read_mask
from lsdflow_watershed.mutex import MutexRules, mutex_channels, usual_stride_vox

STAGE = "watershed"


class Watershed(BlockStage):
    """The stage; one pass."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The pass, checked before anything is written."""
        return [_pass(experiment, *_opened_inputs(experiment))]

    def process(self, experiment: Experiment) -> Manifest:
        """Process the blocks that are not done. Records the identity of a mask first, for the workers."""
        config, inputs = _opened_inputs(experiment)
        note_mask(experiment.layout, inputs)
        return run_task(_pass(experiment, config, inputs))

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before predict has run."""
        config = experiment.table(STAGE, WatershedConfig)
        if not knows_target(experiment.layout):
            return []
        grid = cache(partial(target_grid, experiment.layout))
        checks: list[Callable[[], object]] = [
            lambda: plan_blocks(config, grid().box, grid().voxel_size_nm),
            lambda: check_seed_ids(config, grid().box, grid().shape_vox),
            lambda: check_sections(config.replace_sections, grid().shape_vox[0]),
            lambda: open_mask(config, experiment.resolve, grid()),
        ]
        if experiment.layout.manifest("predict").exists():
            checks.append(lambda: _mutex_rules(_opened_inputs(experiment)[1], config))
        return list({problem.message(): problem for problem in problems_of(checks)}.values())

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """Facts of the experiment's store."""
        return {"store": store_facts(experiment)}


def _opened_inputs(experiment: Experiment) -> tuple[WatershedConfig, WatershedInputs]:
    config = experiment.table(STAGE, WatershedConfig)
    return config, open_inputs(config, experiment.layout, experiment.resolve)


def _pass(experiment: Experiment, config: WatershedConfig, inputs: WatershedInputs) -> BlockTask:
    """The pass. All checks of the settings and inputs are done here, before anything is written."""
    blocks = plan_blocks(config, inputs.affs.box, inputs.grid.voxel_size_nm)
    check_seed_ids(config, blocks.total, inputs.grid.shape_vox)
    check_sections(config.replace_sections, inputs.grid.shape_vox[0])
    mutex = _mutex_rules(inputs, config)
    # The lengths in voxels, from which agglomerate finds the block of a fragment.
    lengths = {**blocks.in_voxels(), "voxels_per_block": math.prod(blocks.write_shape_vox)}
    resolved = {**config.parameters(), "resolved": {**lengths, **_resolved_mutex(mutex)}}
    key = work_key(STAGE, resolved, inputs.identities)
    fragments = OutputArray(
        experiment.layout.result(STAGE, key) / "fragments.zarr",
        FRAGMENTS,
        inputs.grid,
        blocks.total,
        blocks.write_shape_vox,
        config.zarr_format,
    )
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=key,
        config=resolved,
        inputs=inputs.identities,
        plan=blocks,
        outputs={"fragments": fragments},
        open=lambda: _opened(inputs, config, blocks, mutex),
        may_have_holes=True,
    )


@contextmanager
def _opened(
    inputs: WatershedInputs, config: WatershedConfig, blocks: BlockPlan, mutex: MutexRules | None
) -> Iterator[BlockFunction]:
    rules = BlockRules(
        fragments=FragmentRules(
            fragments_in_xy=config.fragments_in_xy,
            min_seed_distance_vox=config.min_seed_distance_vox,
            filter_fragments=config.filter_fragments,
            epsilon_agglomerate=config.epsilon_agglomerate,
            boundary=config.boundary_rule,
        ),
        voxels_per_block=math.prod(blocks.write_shape_vox),
        bad_z=frozenset(config.replace_sections),
        filling=config.replace_sections_with,
        mutex=mutex,
    )
    make_fragments = fragments_of_block if config.id_mode == "blocks" else seamless_fragments_of_block
    after_vox = voxels_after(config)

    def make_block(block: Block) -> BlockOutput:
        """Fragments u64 (z, y, x) of one block from affs u8 (3, z, y, x), and their nodes."""
        read = block.read.grow((0, 0, 0), after_vox).intersect(inputs.affs.box)
        place = BlockPlace(block.number, block.write, read)
        ids, nodes = make_fragments(inputs.affs.read(read), read_mask(inputs, read), place, rules, inputs.grid)
        return BlockOutput(arrays={"fragments": ids}, nodes=nodes, facts={"fragments": len(nodes)})

    yield make_block


def _mutex_rules(inputs: WatershedInputs, config: WatershedConfig) -> MutexRules | None:
    if config.method == "seeded":
        return None
    strides = config.mutex_strides or (usual_stride_vox(inputs.grid.voxel_size_nm),)
    return MutexRules(mutex_channels(inputs.neighborhood, config.mutex_bias, strides), config.remove_debris_vox)


def _resolved_mutex(mutex: MutexRules | None) -> dict[str, Any]:
    return {} if mutex is None else {"mutex_channels": [asdict(channel) for channel in mutex.channels]}
