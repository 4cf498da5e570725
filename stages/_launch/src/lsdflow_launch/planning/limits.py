"""What a plan runs into: the room on the disk, time limits and memory of jobs, the time-out of a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lsdflow_contract.experiment import Experiment
from lsdflow_launch.planning.allotment import Job
from lsdflow_launch.planning.estimate import StageEstimate
from lsdflow_launch.planning.quantity import Quantity
from lsdflow_launch.planning.wording import duration, size
from lsdflow_launch.slurm.table import BLOCK_STAGES, cluster_of

if TYPE_CHECKING:
    from lsdflow_launch.planning.plan import Plan

SPARE = 1.1
DISK = "disk"


@dataclass(frozen=True)
class Warn:
    """certain: what is known already is too much, whatever the rest adds."""

    stage: str
    what: str
    fix: str
    certain: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As it stands in plan.json."""
        return asdict(self)


def warnings_of(experiment: Experiment, plan: Plan) -> list[Warn]:
    """All of them."""
    found = [*_of_disk(plan)]
    for stage, estimate in plan.estimates.items():
        if estimate.share_left > 0 and stage in BLOCK_STAGES:
            found += _of_block_time(experiment, stage, estimate)
        if estimate.share_left > 0 and plan.on_slurm:
            found += _of_jobs(experiment, plan, stage)
    return found


def _of_disk(plan: Plan) -> Iterator[Warn]:
    needed, files, room = plan.left("bytes_written"), plan.left("files"), plan.room
    fix = "free some space, put the experiment on a larger disk, or choose a part of the volume with roi"
    if needed.value is not None and needed.value * SPARE > room.free_bytes:
        what = f"{_about(needed, size)} are still to be written, {size(room.free_bytes)} are free"
        yield Warn(DISK, what, fix, certain=needed.value > room.free_bytes)
    if files.value is not None and room.free_files is not None and files.value > room.free_files:
        what = f"{files.value:.0f} files are still to be made, {room.free_files} may be"
        yield Warn(DISK, what, "larger blocks make fewer files; or ask for more inodes", certain=True)


def _of_block_time(experiment: Experiment, stage: str, estimate: StageEstimate) -> Iterator[Warn]:
    per_block, limit = estimate["seconds_per_block"], experiment.compute.block_timeout_s
    if per_block.value is not None and per_block.value > limit:
        what = f"a block takes {duration(per_block.value)}, compute.block_timeout_s is {duration(limit)}"
        yield Warn(stage, what, f"compute.block_timeout_s = {10 * per_block.value:.0f}")


def _of_jobs(experiment: Experiment, plan: Plan, stage: str) -> Iterator[Warn]:
    table, allotment, estimate = cluster_of(experiment), plan.allotments[stage], plan.estimates[stage]
    walltime, starts = estimate["walltime_s"].times(estimate.share_left), table.max_restarts + 1
    whole = allotment.coordinator or allotment.workers
    key = f"cluster.{stage}.time"
    if walltime.value is not None and whole.time_limit_s and walltime.value > whole.time_limit_s - table.warn_s:
        what = f"{_about(walltime, duration)} of work, {key} is {duration(whole.time_limit_s)}: the job comes back "
        enough = walltime.value <= starts * (whole.time_limit_s - table.warn_s)
        what += "into the queue and goes on" if enough else f"{table.max_restarts} times, which is not enough"
        yield Warn(stage, what, f"{key} or more workers" if enough else f"more of {key}, or cluster.max_restarts")
    yield from _of_workers(stage, estimate, allotment.workers, table.warn_s)


def _of_workers(stage: str, estimate: StageEstimate, workers: Job, warn_s: int) -> Iterator[Warn]:
    prefix = "worker_" if stage in BLOCK_STAGES else ""
    block, rss = estimate["seconds_per_block"].value, estimate["rss_per_worker_bytes"].value
    if block is not None and workers.time_limit_s and block > workers.time_limit_s - warn_s:
        what = f"a block takes {duration(block)}, a worker has {duration(workers.time_limit_s)}: no block is ever done"
        yield Warn(stage, what, f"more of cluster.{stage}.{prefix}time, or smaller blocks")
    if rss is not None and workers.memory_bytes and rss > workers.memory_bytes:
        what = f"a worker needs {size(rss)}, it asks for {size(workers.memory_bytes)}"
        yield Warn(stage, what, f"more of cluster.{stage}.{prefix}mem, or smaller blocks")


def _about(quantity: Quantity, text: Any) -> str:
    return f"{'at least ' if quantity.at_least else 'about '}{text(quantity.value)}"
