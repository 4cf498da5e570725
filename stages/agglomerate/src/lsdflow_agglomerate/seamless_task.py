"""The work of seamless mode, in two passes: faces of every block, then one agglomeration of the whole graph.

    fragments, affinities --blocks, any workers--> edges_faces --coordinator--> edges_<merge_function>

The rows of faces stay: another merge function needs no second reading of voxels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from lsdflow_agglomerate.blocking import plan_faces
from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_agglomerate.face_counts import box_with_lower_neighbours, count_faces
from lsdflow_agglomerate.face_graph import add_faces
from lsdflow_agglomerate.graph_agglomeration import score_graph
from lsdflow_agglomerate.inputs import AgglomerateInputs
from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.graph import FACES, RagFaces
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.blocks import Block, BlockPlan

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
    )


def graph_task(experiment: Experiment, config: AgglomerateConfig, inputs: AgglomerateInputs) -> BlockTask:
    """The second pass: one block, the whole volume, of which only the rows of faces are read. By the coordinator."""
    faces = faces_task(experiment, config, inputs)
    plan = BlockPlan(faces.plan.total, faces.plan.total.shape_vox)
    parameters = {**config.model_dump(mode="json"), "resolved": resolved_plan(faces.plan)}
    known = {**inputs.identities, FACES: faces.key}
    alone = experiment.compute.model_copy(update={"runner": "serial"})
    return BlockTask(
        stage=STAGE,
        experiment=replace(experiment, compute=alone),
        key=work_key(STAGE, parameters, known),
        config=parameters,
        inputs=known,
        plan=plan,
        outputs={},
        open=partial(_open_agglomeration, faces, config.merge_functions),
    )


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


@contextmanager
def _open_agglomeration(faces: BlockTask, merge_functions: tuple[str, ...]) -> Iterator[BlockFunction]:
    def agglomerate(block: Block) -> BlockOutput:
        del block
        graph = add_faces(_stored_faces(faces))
        edges = {name: score_graph(graph, name) for name in merge_functions}
        facts = {f"edges_{name}": len(scored) for name, scored in edges.items()}
        return BlockOutput(edges=edges, facts=facts)

    yield agglomerate


def _stored_faces(faces: BlockTask) -> Iterator[RagFaces]:
    for rows in faces.rag_store.iter_edges(faces.key, FACES, len(faces.plan)):
        if not isinstance(rows, RagFaces):
            raise BadData("these rows are no faces", where=faces.marks.where, hint=f"run {STAGE} repair")
        yield rows
