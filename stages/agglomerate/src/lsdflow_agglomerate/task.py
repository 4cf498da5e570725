"""The stage: affinities and fragments in, edges of the region graph out, block by block.

How the fragments are named decides how: fragments of blocks are scored in blocks, seamless ones on complete faces
(seamless_task).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsdflow_agglomerate.block_edges import edges_of_block
from lsdflow_agglomerate.blocking import plan_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.inputs import AgglomerateInputs, open_inputs
from lsdflow_agglomerate.problems import problems_before_fragments
from lsdflow_agglomerate.seamless_task import STAGE, resolved_plan, seamless_passes
from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import ConfigError, ContractMismatch, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest, work_key
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.blockwise import plan_task, run_blocks, run_task, status_task, worker_task
from lsdflow_runtime.daisy_runner import current_work
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.measured_block import measure_block
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
    *before, last = passes(experiment)
    facts = verify_task(last)
    return facts | {f"{_name_of(task)}_blocks_read_back": verify_blocks(task) for task in before}


def repair(experiment: Experiment) -> dict[str, Any]:
    """Make again the blocks that are lost or damaged."""
    with coordinating(STAGE, experiment):
        *before, last = passes(experiment)
        found: dict[str, Any] = {}
        for task in before:
            found |= {f"{_name_of(task)}_{name}": fact for name, fact in take_back_broken(task).items()}
        found |= take_back_broken(last)
        return {**found, "identity": _run(experiment, RunOptions()).identity}


def worker(experiment: Experiment) -> None:
    """Take blocks from a running coordinator."""
    work = current_work()
    for task in passes(experiment):
        if task.key == work:
            return worker_task(task)
    raise ContractMismatch(
        "this worker does not know the work of its coordinator",
        where=experiment.path,
        found=f"key {work[:12]}",
        hint="let both run the same image and settings",
    )


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do: the pass that reads voxels; where there are others, each of them."""
    plans = {_name_of(task): plan_task(task) for task in passes(experiment)}
    first = next(iter(plans.values()))
    return {**first, "passes": plans} if len(plans) > 1 else first


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What one block of the pass that reads voxels takes; done into a throw-away folder."""
    first, *others = passes(experiment)
    return {**measure_block(first, folder), **({"pass": _name_of(first)} if others else {})}


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done: blocks of the pass that is at work, and of each."""
    of_passes = {_name_of(task): status_task(task) for task in passes(experiment)}
    *before, last = of_passes.values()
    name, now = next((item for item in of_passes.items() if item[1]["done"] < item[1]["blocks"]), ("", last))
    facts = {**now, "finished": last["finished"], **({"pass": name} if before and name else {})}
    for name, found in list(of_passes.items())[:-1]:
        facts |= {f"{name}_{fact}": found[fact] for fact in ("blocks", "done", "failed")}
    return facts


def _run(experiment: Experiment, options: RunOptions) -> Manifest:
    *before, last = passes(experiment)
    for task in before:
        run_blocks(task, options)
        # what gives way has given way to the first pass already
        options = RunOptions()
    return run_task(last, options)


def _name_of(task: BlockTask) -> str:
    """What a pass is called in facts: faces, left_1, settled_2; the last one edges."""
    return "_".join(str(task.config[name]) for name in ("part", "level") if name in task.config) or "edges"


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen so far; writes nothing."""
    config = experiment.table(STAGE, AgglomerateConfig)
    problems = problems_of_store(experiment)
    if not experiment.layout.manifest("watershed").exists():
        return [*problems_before_fragments(experiment, config), *problems]
    try:
        passes(experiment)
    except StageError as error:
        return [error, *problems]
    return problems


def block_task(experiment: Experiment) -> BlockTask:
    """The work that makes the edges of the graph."""
    return passes(experiment)[-1]


def passes(experiment: Experiment) -> list[BlockTask]:
    """The stage's work; everything that can be refused is refused here, before anything is written.

    Fragments of blocks need one pass; for seamless ones see seamless_task.
    """
    config = experiment.table(STAGE, AgglomerateConfig)
    inputs = open_inputs(experiment, config)
    if inputs.seamless:
        return seamless_passes(experiment, config, inputs)
    return [_blocks_task(experiment, config, inputs)]


def _blocks_task(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    if config.super_block is not None:
        raise ConfigError(
            "fragments of blocks are scored in blocks, without super-blocks",
            where="agglomerate.super_block",
            found=str(config.super_block),
            hint="leave super_block out",
        )
    blocks = plan_blocks(config, inputs.naming, inputs.watershed_context_vox, inputs.grid.voxel_size_nm)
    resolved = {**config.parameters(), "resolved": resolved_plan(blocks)}
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
