"""The stage: affinities and fragments in, edges of the region graph out, block by block.

How the fragments are named decides how: fragments of blocks are scored in blocks, seamless ones on complete faces
(seamless_task).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lsdflow_agglomerate.block_edges import edges_of_block
from lsdflow_agglomerate.blocking import plan_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.inputs import AgglomerateInputs, open_inputs
from lsdflow_agglomerate.problems import check_block_merge_functions, problems_before_fragments
from lsdflow_agglomerate.seamless_task import STAGE, resolved_plan, seamless_passes
from lsdflow_contract.errors import ConfigError, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask


class Agglomerate(BlockStage):
    """The stage: one pass for fragments of blocks; for seamless fragments see seamless_task."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes; everything that can be refused is refused here, before anything is written."""
        config = experiment.table(STAGE, AgglomerateConfig)
        inputs = open_inputs(experiment, config)
        if inputs.seamless:
            return seamless_passes(experiment, config, inputs)
        return [_blocks_task(experiment, config, inputs)]

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found so far."""
        config, made = experiment.table(STAGE, AgglomerateConfig), experiment.layout.manifest("watershed").exists()
        if made and experiment.descriptions is None:
            return super().problems(experiment)
        problems = problems_before_fragments(experiment, config)
        return problems if problems or not made else super().problems(experiment)


def _blocks_task(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    check_block_merge_functions(config)
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
        may_have_holes=True,
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
