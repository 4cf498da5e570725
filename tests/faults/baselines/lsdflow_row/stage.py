"""The stage `row`: 64 blocks, each of which does the work of the baselines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from work import BLOCKS, do_block, factor

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage


def block_task(experiment: Experiment) -> BlockTask:
    return BlockTask(
        **task_of_stage("row", experiment),
        key=work_key("row", {"factor": factor()}, {}),
        config={"factor": factor()},
        inputs={},
        plan=BlockPlan(Box((0, 0, 0), (BLOCKS, 1, 1)), (1, 1, 1)),
        outputs={},
        open=_open,
    )


class Row(BlockStage):
    name = "row"

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        return [block_task(experiment)]


@contextmanager
def _open() -> Iterator[BlockFunction]:
    def do(block: Block) -> BlockOutput:
        do_block(block.number)
        return BlockOutput()

    yield do
