"""The stage: affinities in, volumes/fragments and the nodes of the region graph out, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.arrays import FRAGMENTS
from lsdflow_contract.errors import StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.blockwise import plan_task, run_task, status_task, worker_task
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.measured_block import measure_block
from lsdflow_runtime.rendezvous import coordinating
from lsdflow_runtime.repair import take_back_broken
from lsdflow_runtime.store_facts import store_facts
from lsdflow_runtime.stores import problems_of_store
from lsdflow_runtime.target import knows_target, target_grid
from lsdflow_runtime.verify import verify_task
from lsdflow_runtime.volumes import OutputArray
from lsdflow_watershed.block_fragments import BlockPlace, BlockRules, fragments_of_block
from lsdflow_watershed.blocking import check_sections, check_seed_ids, plan_blocks
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.fragments import FragmentRules
from lsdflow_watershed.inputs import WatershedInputs, open_inputs, open_mask, read_mask
from lsdflow_watershed.mutex_fragments import MutexRules, mutex_channels, usual_stride_vox
from lsdflow_watershed.seamless_block import seamless_fragments_of_block

STAGE = "watershed"


def run(experiment: Experiment, options: RunOptions) -> None:
    """Make the fragments of all blocks that are not done."""
    with coordinating(STAGE, experiment):
        run_task(block_task(experiment), options)


def join(experiment: Experiment) -> None:
    """Take blocks from a coordinator that runs in another job."""
    join_coordinator(STAGE, experiment)


def verify(experiment: Experiment) -> dict[str, Any]:
    """Read back what a finished run made."""
    return verify_task(block_task(experiment))


def repair(experiment: Experiment) -> dict[str, Any]:
    """Make again the blocks that are lost or damaged."""
    with coordinating(STAGE, experiment):
        task = block_task(experiment)
        found = take_back_broken(task)
        return {**found, "identity": run_task(task, RunOptions()).identity}


def worker(experiment: Experiment) -> None:
    """Take blocks from a running coordinator."""
    worker_task(block_task(experiment))


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do."""
    return plan_task(block_task(experiment))


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What one block takes; done into a throw-away folder."""
    return measure_block(block_task(experiment), folder)


def doctor(experiment: Experiment | None) -> dict[str, Any]:
    """What this command finds on this machine: the store of the experiment."""
    return {"store": store_facts(experiment)}


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done."""
    return status_task(block_task(experiment))


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen before predict has run; writes nothing."""
    config = experiment.table(STAGE, WatershedConfig)
    if not knows_target(experiment):
        return problems_of_store(experiment)
    checks: list[Callable[[], object]] = [
        lambda: plan_blocks(config, target_grid(experiment).box, target_grid(experiment).voxel_size_nm),
        lambda: check_seed_ids(config, target_grid(experiment).box, target_grid(experiment).shape_vox),
        lambda: check_sections(config.replace_sections, target_grid(experiment).shape_vox[0]),
        lambda: open_mask(experiment, config, target_grid(experiment)),
    ]
    if experiment.layout.manifest("predict").exists():
        checks.append(lambda: _mutex_rules(open_inputs(experiment, config), config))
    problems = problems_of(checks)
    if not problems and experiment.layout.manifest("predict").exists():
        problems = problems_of([lambda: block_task(experiment).require_ours()])
    problems += problems_of_store(experiment)
    return list({problem.message(): problem for problem in problems}.values())


def block_task(experiment: Experiment) -> BlockTask:
    """The stage's work; everything that can be refused is refused here, before anything is written."""
    config = experiment.table(STAGE, WatershedConfig)
    inputs = open_inputs(experiment, config)
    blocks = plan_blocks(config, inputs.affs.box, inputs.grid.voxel_size_nm)
    check_seed_ids(config, blocks.total, inputs.grid.shape_vox)
    check_sections(config.replace_sections, inputs.grid.shape_vox[0])
    mutex = _mutex_rules(inputs, config)
    resolved = {**config.parameters(), "resolved": {**_resolved(blocks), **_resolved_mutex(mutex)}}
    fragments = OutputArray(
        experiment.layout.fragments, FRAGMENTS, inputs.grid, blocks.total, blocks.write_shape_vox, config.zarr_format
    )
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=work_key(STAGE, resolved, inputs.identities),
        config=resolved,
        inputs=inputs.identities,
        plan=blocks,
        outputs={"fragments": fragments},
        open=lambda: _opened(inputs, config, blocks, mutex),
    )


def _resolved(blocks: BlockPlan) -> dict[str, Any]:
    """What the lengths of the table mean in voxels; agglomerate finds the block of a fragment by it."""
    return {
        "total_begin_vox": list(blocks.total.begin_vox),
        "total_shape_vox": list(blocks.total.shape_vox),
        "block_shape_vox": list(blocks.write_shape_vox),
        "context_vox": list(blocks.context_vox),
        "voxels_per_block": math.prod(blocks.write_shape_vox),
    }


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
        ),
        voxels_per_block=math.prod(blocks.write_shape_vox),
        bad_z=frozenset(config.replace_sections),
        filling=config.replace_sections_with,
        mutex=mutex,
    )
    make_fragments = fragments_of_block if config.id_mode == "blocks" else seamless_fragments_of_block

    def make_block(block: Block) -> BlockOutput:
        read = block.read.intersect(inputs.affs.box)
        place = BlockPlace(block.number, block.write, read)
        ids, nodes = make_fragments(inputs.affs.read(read), read_mask(inputs.mask, read), place, rules, inputs.grid)
        return BlockOutput(arrays={"fragments": ids}, nodes=nodes, facts={"fragments": len(nodes)})

    yield make_block


def _mutex_rules(inputs: WatershedInputs, config: WatershedConfig) -> MutexRules | None:
    if config.method == "seeded":
        return None
    strides = config.mutex_strides or (usual_stride_vox(inputs.grid.voxel_size_nm),)
    return MutexRules(mutex_channels(inputs.neighborhood, config.mutex_bias, strides), config.remove_debris_vox)


def _resolved_mutex(mutex: MutexRules | None) -> dict[str, Any]:
    return {} if mutex is None else {"mutex_channels": [asdict(channel) for channel in mutex.channels]}
