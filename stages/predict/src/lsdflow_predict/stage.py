"""The stage: raw in, affinities (and LSDs) out, by trained networks; tiles and blocks are planned in a Job.

torch takes seconds to load, so it is imported where it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest
from lsdflow_predict.checkpoints import check_weights
from lsdflow_predict.devices import check_precision
from lsdflow_predict.job import STAGE, gather, open_mask
from lsdflow_predict.problems import find_problems
from lsdflow_predict.work import tasks_of
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.planning import plan_task


class Predict(BlockStage):
    """The stage: a pass of affinities; where LSDs are stored first, a pass of LSDs before it."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes; everything that can be refused without the networks' weights is refused here."""
        return tasks_of(gather(experiment))

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems of settings, volumes and networks."""
        return find_problems(experiment)

    def process(self, experiment: Experiment) -> Manifest:
        """Predict the blocks that are not done. Weights, mask and precision are checked first."""
        job = gather(experiment)
        check_precision(experiment, job.config)
        check_weights(job.networks)
        open_mask(experiment, job.config, job.raw)
        return super().process(experiment)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks, bytes, main memory of a worker, and seconds as far as they are known."""
        from lsdflow_predict.estimate import estimate, lsd_multiply_adds

        job = gather(experiment)
        *before, last = tasks_of(job)
        facts = {**plan_task(last), **estimate(job, last, *before)}
        if not before:
            return facts
        lsds = {**plan_task(before[0]), "multiply_adds": lsd_multiply_adds(job)}
        return {**facts, "passes": {before[0].label: lsds, last.label: facts}}

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block of the first pass, also the memory of a GPU."""
        from lsdflow_predict.estimate import device_taken

        return {**super().measure(experiment, folder), **device_taken(experiment.compute.device)}

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """torch and its GPUs."""
        from lsdflow_network.torch_build import torch_facts

        del experiment
        return torch_facts()
