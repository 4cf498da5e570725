"""Ten blocks without arrays. Block 1 fails at its first attempt; block 9 waits until there is a file `go`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage

BLOCKS, FAILING, WAITING = 10, 1, 9


def block_task(experiment: Experiment) -> BlockTask:
    """The work."""
    return BlockTask(
        **task_of_stage("watched", experiment),
        key=work_key("watched", {"blocks": BLOCKS}, {}),
        config={"blocks": BLOCKS},
        inputs={},
        plan=BlockPlan(Box((0, 0, 0), (1, 1, BLOCKS)), (1, 1, 1)),
        outputs={},
        open=partial(_open, experiment),
    )


class Watched(BlockStage):
    """The stage."""

    name = "watched"

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The one pass."""
        return [block_task(experiment)]


@contextmanager
def _open(experiment: Experiment) -> Iterator[BlockFunction]:
    folder = experiment.layout.root
    parent = os.getppid()

    def work(block: Block) -> BlockOutput:
        failed = folder / "failed-once"
        if block.number == FAILING and not failed.exists():
            failed.touch()
            msg = "failed once on request"
            raise ValueError(msg)
        while block.number == WAITING and not (folder / "go").exists():
            if os.getppid() != parent:
                os._exit(1)  # the stage was killed: nobody will let this worker go
            time.sleep(0.05)
        return BlockOutput(facts={"number": block.number})

    yield work
