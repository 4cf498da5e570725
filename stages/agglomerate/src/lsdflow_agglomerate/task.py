"""The stage: affinities and fragments in, edges of the region graph out, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lsdflow_agglomerate.block_edges import edges_of_block
from lsdflow_agglomerate.blocking import plan_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.inputs import AgglomerateInputs, open_inputs
from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.blockwise import plan_task, run_task, status_task, worker_task
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.rendezvous import coordinating
from lsdflow_runtime.repair import take_back_broken
from lsdflow_runtime.stores import problems_of_store
from lsdflow_runtime.verify import verify_task

STAGE = "agglomerate"


def run(experiment: Experiment, options: RunOptions) -> None:
    """Score the edges of all blocks that are not done."""
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


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done."""
    return status_task(block_task(experiment))


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen so far; writes nothing."""
    experiment.table(STAGE, AgglomerateConfig)
    problems = problems_of_store(experiment)
    if not experiment.layout.manifest("watershed").exists():
        return problems
    try:
        block_task(experiment)
    except StageError as error:
        return [error, *problems]
    return problems


def block_task(experiment: Experiment) -> BlockTask:
    """The stage's work; everything that can be refused is refused here, before anything is written."""
    config = experiment.table(STAGE, AgglomerateConfig)
    inputs = open_inputs(experiment)
    blocks = plan_blocks(config, inputs.naming, inputs.watershed_context_vox, inputs.grid.voxel_size_nm)
    resolved = {**config.model_dump(mode="json"), "resolved": _resolved(blocks)}
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=work_key(STAGE, resolved, inputs.identities),
        config=resolved,
        inputs=inputs.identities,
        plan=blocks,
        outputs={},
        open=lambda: _opened(inputs, config.merge_functions),
    )


def _resolved(blocks: BlockPlan) -> dict[str, Any]:
    return {
        "total_begin_vox": list(blocks.total.begin_vox),
        "total_shape_vox": list(blocks.total.shape_vox),
        "block_shape_vox": list(blocks.write_shape_vox),
        "context_vox": list(blocks.context_vox),
    }


@contextmanager
def _opened(inputs: AgglomerateInputs, merge_functions: tuple[str, ...]) -> Iterator[BlockFunction]:
    def score_block(block: Block) -> BlockOutput:
        read = block.read.intersect(inputs.naming.total)
        affs, fragments = inputs.affs.read(read), inputs.fragments.read(read)
        edges = edges_of_block(affs, fragments, (block.write, read), inputs.naming, merge_functions)
        facts = {f"edges_{name}": len(scored) for name, scored in edges.items()}
        return BlockOutput(edges=edges, facts=facts)

    yield score_block
