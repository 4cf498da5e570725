"""The work of seamless mode: faces of every block, then agglomeration of the graph in super-blocks.

    fragments, affinities --blocks--> edges_faces --super-blocks--> edges_<merge_function>

The rows of faces stay: another merge function needs no second reading of voxels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lsdflow_agglomerate.blocking import plan_faces, plan_super_blocks
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.face_counts import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.inputs import AgglomerateInputs
from lsdflow_agglomerate.super_block_tasks import GraphWork
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.graph import FACES
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask

STAGE = "agglomerate"


def faces_task(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    """The first pass: faces between fragments, counted block by block."""
    plan = plan_faces(config, inputs.naming, inputs.grid.voxel_size_nm)
    parameters = {"part": FACES, "resolved": resolved_plan(plan)}
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=work_key(STAGE, parameters, inputs.identities),
        config=parameters,
        inputs=inputs.identities,
        plan=plan,
        outputs={},
        open=partial(_open_counting, inputs),
        label=FACES,
        may_have_holes=True,
    )


def seamless_passes(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> list[BlockTask]:
    """All passes in their order; the last makes the edges of the graph."""
    faces = faces_task(experiment, config, inputs)
    super_blocks = plan_super_blocks(config, faces.plan, inputs.naming, inputs.watershed_context_vox, inputs.grid)
    resolved = resolved_plan(faces.plan)
    if super_blocks.levels > 1:
        resolved["super_block_vox"] = list(super_blocks.shape_vox)
    parameters = {**config.parameters(), "resolved": resolved}
    return [faces, *GraphWork(faces, super_blocks, config.merge_functions, parameters).passes()]


def resolved_plan(blocks: BlockPlan) -> dict[str, Any]:
    """What the lengths of the table mean in voxels."""
    return {
        "total_begin_vox": list(blocks.total.begin_vox),
        "total_shape_vox": list(blocks.total.shape_vox),
        "block_shape_vox": list(blocks.write_shape_vox),
        "context_vox": list(blocks.context_vox),
    }


@contextmanager
def _open_counting(inputs: AgglomerateInputs) -> Iterator[BlockFunction]:
    def count_block(block: Block) -> BlockOutput:
        read = box_with_lower_neighbours(block.write, inputs.naming.total)
        faces = count_faces(inputs.affs.read(block.write), inputs.fragments.read(read), block.write, read)
        return BlockOutput(edges={FACES: faces}, facts={FACES: int(faces.count.sum()), "rows": len(faces)})

    yield count_block
