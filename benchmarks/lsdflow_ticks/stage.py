"""The stage of tiny blocks: as many as the seed of the experiment says; no arrays, no rows, a durable mark each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from block_clock import tick

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage


def experiment_of(folder: Path, blocks: int) -> Experiment:
    """An experiment of so many blocks for two workers."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(f'[experiment]\nname = "ticks"\nseed = {blocks}\n')
    return load_experiment(folder, ["compute.runner=daisy", "compute.workers=2"])


def block_task(experiment: Experiment) -> BlockTask:
    """The work on all blocks."""
    blocks = experiment.tables["experiment"]["seed"]
    return BlockTask(
        **task_of_stage("ticks", experiment),
        key=work_key("ticks", {"blocks": blocks}, {}),
        config={"blocks": blocks},
        inputs={},
        plan=BlockPlan(Box((0, 0, 0), (1, 1, blocks)), (1, 1, 1)),
        outputs={},
        open=lambda: _open(experiment.layout.root),
    )


class Ticks(BlockStage):
    """The stage."""

    name = "ticks"

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The one pass."""
        return [block_task(experiment)]


def run(experiment: Experiment) -> None:
    """Do all blocks."""
    Ticks().run(experiment)


@contextmanager
def _open(folder: Path) -> Iterator[BlockFunction]:
    def look_at_the_clock(block: Block) -> BlockOutput:
        tick(folder)
        return BlockOutput(facts={"square": block.number**2})

    yield look_at_the_clock
