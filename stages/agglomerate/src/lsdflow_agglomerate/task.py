"""The stage: affinities and fragments in, edges of the region graph out, block by block.

How the fragments are named decides how: fragments of blocks are scored in blocks, seamless ones on complete faces
(seamless_task).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lsdflow_agglomerate.block_edges import edges_of_block
from lsdflow_agglomerate.blocking import plan_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.inputs import AgglomerateInputs, open_inputs
from lsdflow_agglomerate.seamless_task import STAGE, faces_task, graph_task, resolved_plan
from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest, work_key
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.blockwise import plan_task, run_blocks, run_task, status_task, worker_task
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.rendezvous import coordinating
from lsdflow_runtime.repair import take_back_broken
from lsdflow_runtime.stores import problems_of_store
from lsdflow_runtime.verify import verify_blocks, verify_task


def run(experiment: Experiment, options: RunOptions) -> None:
    """Score the edges of all blocks that are not done."""
    with coordinating(STAGE, experiment):
        _run(experiment, options)


def join(experiment: Experiment) -> None:
    """Take blocks from a coordinator that runs in another job."""
    join_coordinator(STAGE, experiment)


def verify(experiment: Experiment) -> dict[str, Any]:
    """Read back what a finished run made."""
    facts = verify_task(block_task(experiment))
    if faces := _faces_task(experiment):
        facts["faces_blocks_read_back"] = verify_blocks(faces)
    return facts


def repair(experiment: Experiment) -> dict[str, Any]:
    """Make again the blocks that are lost or damaged."""
    with coordinating(STAGE, experiment):
        found: dict[str, Any] = {}
        if faces := _faces_task(experiment):
            found |= {f"faces_{name}": fact for name, fact in take_back_broken(faces).items()}
        found |= take_back_broken(block_task(experiment))
        return {**found, "identity": _run(experiment, RunOptions()).identity}


def worker(experiment: Experiment) -> None:
    """Take blocks from a running coordinator."""
    worker_task(_faces_task(experiment) or block_task(experiment))


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do."""
    return plan_task(_faces_task(experiment) or block_task(experiment))


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done."""
    facts = status_task(block_task(experiment))
    if faces := _faces_task(experiment):
        first = status_task(faces)
        facts |= {f"faces_{name}": first[name] for name in ("blocks", "done", "failed", "failures")}
    return facts


def _run(experiment: Experiment, options: RunOptions) -> Manifest:
    if faces := _faces_task(experiment):
        run_blocks(faces, options)
        # what gives way has given way to the faces already
        options = RunOptions()
    return run_task(block_task(experiment), options)


def _faces_task(experiment: Experiment) -> BlockTask | None:
    """The first pass over seamless fragments; none for fragments of blocks."""
    inputs = open_inputs(experiment)
    return faces_task(experiment, experiment.table(STAGE, AgglomerateConfig), inputs) if inputs.seamless else None


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
    if inputs.seamless:
        return graph_task(experiment, config, inputs)
    blocks = plan_blocks(config, inputs.naming, inputs.watershed_context_vox, inputs.grid.voxel_size_nm)
    resolved = {**config.model_dump(mode="json"), "resolved": resolved_plan(blocks)}
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


@contextmanager
def _opened(inputs: AgglomerateInputs, merge_functions: tuple[str, ...]) -> Iterator[BlockFunction]:
    def score_block(block: Block) -> BlockOutput:
        read = block.read.intersect(inputs.naming.total)
        affs, fragments = inputs.affs.read(read), inputs.fragments.read(read)
        edges = edges_of_block(affs, fragments, (block.write, read), inputs.naming, merge_functions)
        facts = {f"edges_{name}": len(scored) for name, scored in edges.items()}
        return BlockOutput(edges=edges, facts=facts)

    yield score_block
