"""The tiny stage: as many blocks as the seed of the experiment says; no arrays, no rows, the square of each number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import Manifest, read_manifest, work_key
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage


def block_task(experiment: Experiment) -> BlockTask:
    blocks = experiment.tables["experiment"]["seed"]
    return BlockTask(
        **task_of_stage("tiny", experiment),
        key=work_key("tiny", {"blocks": blocks}, {}),
        config={"blocks": blocks},
        inputs={},
        plan=BlockPlan(Box((0, 0, 0), (1, 1, blocks)), (1, 1, 1)),
        outputs={},
        open=_open,
    )


class Tiny(BlockStage):
    name = "tiny"

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        return [block_task(experiment)]


def run(experiment: Experiment) -> Manifest:
    Tiny().run(experiment)
    return read_manifest(experiment.layout, "tiny")


@contextmanager
def _open() -> Iterator[BlockFunction]:
    yield lambda block: BlockOutput(facts={"square": block.number**2})
