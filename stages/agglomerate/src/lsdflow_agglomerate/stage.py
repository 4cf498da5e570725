"""The stage: computes the edges of the region adjacency graph from affinities and fragments.

The method depends on the id mode of the fragments. Fragments that end at block faces are scored in blocks, in one pass.
Seamless fragments are scored on complete faces: first the faces of every block are counted, then the graph is
agglomerated in super-blocks:

    fragments, affinities --blocks--> edges_faces --super-blocks--> edges_<merge_function>

The rows of faces are kept, so that another merge function does not require reading voxels again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from lsdflow_agglomerate.block_edges import edges_of_block
from lsdflow_agglomerate.blocking import plan_blocks, plan_faces, plan_super_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.faces import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.inputs import AgglomerateInputs, open_inputs
from lsdflow_agglomerate.problems import check_block_merge_functions, problems_before_fragments
from lsdflow_agglomerate.super_blocks import GraphWork
from lsdflow_contract.errors import ConfigError, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.graph import FACES
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage

STAGE = "agglomerate"


class Agglomerate(BlockStage):
    """The stage: one pass for fragments that end at block faces; for seamless ones faces, then super-blocks."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes. All checks of the settings and inputs are done here, before anything is written."""
        config = experiment.table(STAGE, AgglomerateConfig)
        inputs = open_inputs(experiment.layout, config)
        if inputs.seamless:
            return seamless_passes(experiment, config, inputs)
        return [scoring_pass(experiment, config, inputs)]

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found so far."""
        config, real = experiment.table(STAGE, AgglomerateConfig), experiment.descriptions is None
        made = experiment.layout.manifest("watershed").exists()
        if made and real:
            return super().problems(experiment)
        problems = problems_before_fragments(experiment.layout, experiment.tables, config, real=real)
        return problems if problems or not made else super().problems(experiment)


def seamless_passes(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> list[BlockTask]:
    """All passes in their order; the last one writes the edges of the graph."""
    faces = faces_pass(experiment, config, inputs)
    super_blocks = plan_super_blocks(config, faces.plan, inputs.naming, inputs.watershed_context_vox, inputs.grid)
    resolved = faces.plan.in_voxels()
    if super_blocks.levels > 1:
        resolved["super_block_vox"] = list(super_blocks.shape_vox)
    parameters = {**config.parameters(), "resolved": resolved}
    return [faces, *GraphWork(faces, super_blocks, config.merge_functions, parameters).passes()]


def faces_pass(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    """The first pass: faces between fragments, counted block by block."""
    plan = plan_faces(config, inputs.naming, inputs.grid.voxel_size_nm)
    parameters = {"part": FACES, "resolved": plan.in_voxels()}
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=work_key(STAGE, parameters, inputs.identities),
        config=parameters,
        inputs=inputs.identities,
        plan=plan,
        outputs={},
        open=partial(_open_counting, inputs),
        label=FACES,
        may_have_holes=True,
    )


@contextmanager
def _open_counting(inputs: AgglomerateInputs) -> Iterator[BlockFunction]:
    def count_block(block: Block) -> BlockOutput:
        """Count the faces between fragments of one block: rows u, v (u64), affinity (u8), count."""
        read = box_with_lower_neighbours(block.write, inputs.naming.total)
        faces = count_faces(inputs.affs.read(block.write), inputs.fragments.read(read), block.write, read)
        return BlockOutput(edges={FACES: faces}, facts={FACES: int(faces.count.sum()), "rows": len(faces)})

    yield count_block


def scoring_pass(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    """The only pass for fragments that end at block faces: edges, scored block by block."""
    check_block_merge_functions(config)
    if config.super_block is not None:
        raise ConfigError(
            "fragments of blocks are scored in blocks, without super-blocks",
            where="agglomerate.super_block",
            found=str(config.super_block),
            fix="leave super_block out",
        )
    blocks = plan_blocks(config, inputs.naming, inputs.watershed_context_vox, inputs.grid.voxel_size_nm)
    resolved = {**config.parameters(), "resolved": blocks.in_voxels()}
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=work_key(STAGE, resolved, inputs.identities),
        config=resolved,
        inputs=inputs.identities,
        plan=blocks,
        outputs={},
        open=partial(_open_scoring, inputs, config.merge_functions),
        may_have_holes=True,
    )


@contextmanager
def _open_scoring(inputs: AgglomerateInputs, merge_functions: tuple[str, ...]) -> Iterator[BlockFunction]:
    def score_block(block: Block) -> BlockOutput:
        """Score the edges of one block from affs u8 (3, z, y, x) and fragments u64 (z, y, x)."""
        read = block.read.intersect(inputs.naming.total)
        affs, fragments = inputs.affs.read(read), inputs.fragments.read(read)
        edges = edges_of_block(affs, fragments, (block.write, read), inputs.naming, merge_functions)
        facts = {f"edges_{name}": len(scored) for name, scored in edges.items()}
        return BlockOutput(edges=edges, facts=facts)

    yield score_block
