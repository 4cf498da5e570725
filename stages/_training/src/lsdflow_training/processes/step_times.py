"""Time the steps of one process of a training: how long they take, and how much of that is the exchange of gradients.

DistributedDataParallel itself times each backward pass (with CUDA events on a GPU). The average of the gradients over
the processes begins with the first gradients, during the backward pass. `all_reduce` is the time of the whole average,
`all_reduce_wait` the time that it still takes after the backward pass. Both include the wait for slower processes.
Sharded weights (FSDP) have no such times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gunpowder as gp
import torch
from torch.nn.parallel import DistributedDataParallel

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.files import write_json
from lsdflow_training.curves import Curves
from lsdflow_training.failures import memory_errors
from lsdflow_training.measured import memory_taken, some_steps
from lsdflow_training.processes.collectives import Group, open_group
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.step import StepResult
from lsdflow_training.trainer import Trainer

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd
    from lsdflow_training.run import Training

# The first steps allocate memory and choose kernels; the last one writes a snapshot.
FIRST_STEPS, LAST_STEPS = 3, 1
RANK_FILE = "rank_{}.json"
NANOSECONDS = 1e-9


class TimedTrainer(Trainer):
    """A trainer that notes when each step ended and, with DDP, how long its gradients were exchanged (seconds)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended: list[float] = []
        self.exchanged: list[tuple[float, float]] = []
        self._ddp = next((m for m in self.network.modules() if isinstance(m, DistributedDataParallel)), None)
        if self._ddp is not None:
            self._ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]

    def _step(self, batches: Sequence[gp.Batch], curves: Curves | None) -> StepResult:
        result = super()._step(batches, curves)
        self.ended.append(time.perf_counter())
        if self._ddp is not None:  # the times of the step before: they are complete when the next one begins
            times = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            whole = int(times.get("backward_comm_time", 0))
            beside = int(times.get("backward_compute_comm_overlap_time", 0))
            self.exchanged.append((NANOSECONDS * whole, NANOSECONDS * max(0, whole - beside)))
        return result

    def shares(self) -> dict[str, float | None]:
        """Steps per second, and all_reduce_share and all_reduce_wait_share of their time (None: not known).

        Raises ConfigError if there are too few steps.
        """
        steps = len(self.ended) - FIRST_STEPS - LAST_STEPS
        if steps < 1:
            raise ConfigError(
                "too few steps to time one",
                where="max_iteration and max_minutes",
                wanted=f"at least {FIRST_STEPS + LAST_STEPS + 1} steps within a minute",
                found=len(self.ended),
                fix="a smaller input_shape_vox, or a faster machine",
            )
        seconds = self.ended[-1 - LAST_STEPS] - self.ended[FIRST_STEPS - 1]
        timed = self.exchanged[FIRST_STEPS + 1 : len(self.exchanged) - LAST_STEPS + 1]
        whole, waited = (sum(times) / seconds for times in zip(*timed, strict=True)) if timed else (None, None)
        if self.group.alone:
            whole = waited = 0.0
        return {"it_per_s": steps / seconds, "all_reduce_share": whole, "all_reduce_wait_share": waited}


def measure_rank(training: Training, folder: Path, lsd: FrozenLsd | None, ranks: Ranks) -> dict[str, Any]:
    """Take part in the measurement of several processes on one node; writes rank_<rank>.json and what a training writes
    to `folder`.

    Raises ConfigError (78) for another backend than torch, for fewer GPUs than processes, and for too few steps.
    """
    settings = some_steps(training.settings)
    if training.config.backend != "torch":
        raise ConfigError("only torch measures several processes", where="backend", found=training.config.backend)
    gpus = torch.cuda.device_count() if settings.device.startswith("cuda") else ranks.local_world_size
    if gpus < ranks.local_world_size:
        raise ConfigError("each process needs a GPU", wanted=f"{ranks.local_world_size} GPUs", found=gpus)
    with memory_errors(settings), open_group(ranks, settings.device, settings.distribution.peer_timeout_s) as group:
        facts = _timed(training, settings, folder, lsd, group)
    write_json(folder / RANK_FILE.format(ranks.rank), facts)
    return facts


def _timed(
    training: Training, settings: TrainingSettings, folder: Path, lsd: FrozenLsd | None, group: Group
) -> dict[str, Any]:
    """The facts of this process. The trainer is freed at the end: its network must not outlive the group."""
    trainer = TimedTrainer(settings, training.sources, folder, training.key, lsd, group)
    result = trainer.run()
    shares = trainer.shares()
    samples = (shares["it_per_s"] or 0.0) * settings.step.effective_batch
    wait = {"data_wait_share": result.data_wait_share}
    return {**shares, "samples_per_s": samples, **wait, "threads": settings.threads, **memory_taken(settings)}
