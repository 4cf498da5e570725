"""The toy stage: doubles the raw of its target, one node per block, with faults on request by files in the folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lsdflow_contract.arrays import AFFS, RAW, ArraySpec
from lsdflow_contract.errors import BadData, NoVoxelSize, OutputConflict
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.graph import RagEdges, RagNodes
from lsdflow_contract.manifest import Manifest, work_key
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine import slow_blocks
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, task_of_stage
from lsdflow_runtime.engine.blockwise import run_blocks
from lsdflow_runtime.io.volumes import OutputArray, open_volume

DOUBLED = ArraySpec("volumes/doubled", "uint64", 0, "image")


def block_task(experiment: Experiment) -> BlockTask:
    target = open_volume(experiment.layout.target_volume, RAW.dataset)
    name = experiment.common.name
    parameters = {"factor": experiment.tables["experiment"].get("seed", 2), "name": name}
    box, key = target.geometry.box, work_key("toy", parameters, {})
    return BlockTask(
        **task_of_stage("toy", experiment),
        key=key,
        config=parameters,
        inputs={},
        plan=BlockPlan(box, (8, 8, 8), (1, 1, 1)),
        outputs={
            output: OutputArray(
                experiment.layout.result("toy", key) / f"{name}.zarr",
                spec,
                target.geometry,
                box,
                (8, 8, 8),
            )
            for output, spec in (("doubled", DOUBLED), ("affs", AFFS))
        },
        open=lambda: _open(experiment, parameters["factor"]),
        may_have_holes=True,
    )


class Toy(BlockStage):
    name = "toy"

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        return [block_task(experiment)]

    def process(self, experiment: Experiment) -> Manifest:
        if (experiment.layout.root / "two-passes").exists():
            first = load_experiment(experiment.path, [*experiment.overrides, "experiment.name=first"])
            run_blocks(block_task(first))
        return super().process(experiment)


run, verify, status, repair = Toy().run, Toy().verify, Toy().status, Toy().repair


@contextmanager
def _open(experiment: Experiment, factor: int) -> Iterator[BlockFunction]:
    root = experiment.layout.root
    raw = open_volume(experiment.layout.target_volume, RAW.dataset)
    if (root / "impatient").exists():
        slow_blocks.LEAST_S, slow_blocks.POLL_S = 1.0, 0.2

    def double(block: Block) -> BlockOutput:
        if (root / "slow").exists():
            time.sleep(float((root / "slow").read_text()))
        kills = root / "kill-times"
        if kills.exists() and block.number == 3 and int(kills.read_text()) > 0:
            kills.write_text(str(int(kills.read_text()) - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        if (root / "segfault").exists() and block.number == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if (root / "kill-once").exists() and block.number == 3:
            (root / "kill-once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (root / "hang").exists() and block.number == 2:
            time.sleep(3600)
        if (root / "slow-once").exists() and block.number == 2:
            (root / "slow-once").unlink()
            time.sleep(300)
        if (root / "poison").exists() and block.number == 2:
            msg = "poisoned"
            raise ValueError(msg)
        if (root / "bad").exists() and block.number == 1:
            kinds = {"": BadData, "OutputConflict": OutputConflict, "NoVoxelSize": NoVoxelSize}
            raise kinds[(root / "bad").read_text()]("bad on request", where="toy")
        values = raw.read(block.read, outside="mirror").astype(np.uint64)
        inner = values[block.write.slices(block.read.begin_vox)] * factor
        affs = np.broadcast_to((inner % 256).astype(np.uint8), (3, *inner.shape)).copy()
        ids = np.array([block.number + 1], np.uint64)
        nodes = RagNodes(ids, np.array([block.write.begin_vox], np.float64), np.array([inner.size], np.uint64))
        edges = RagEdges(ids, ids + np.uint64(1), np.array([np.nan if block.number == 0 else 0.5], np.float32))
        return BlockOutput({"doubled": inner, "affs": affs}, nodes, {"mean": edges}, {"voxels": inner.size})

    yield double
