"""A plan of the whole chain: estimates of all stages, space on the disk, warnings of limits, and cost.

work      seconds in the blocks of all passes, for one worker
walltime  work / workers at a time + start of the command and serial time of one process

The user names the prices, in prices.toml (README.md of this package); lsdflow contains none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import BLOCK_STAGES, TRAININGS, Experiment
from lsdflow_contract.files import read_toml
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.model import StrictModel
from lsdflow_launch.commands import Ask
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.disk import SPARE, FreeSpace, free_space
from lsdflow_launch.output import duration, size
from lsdflow_launch.planning.evidence import (
    RSS,
    VRAM,
    Evidence,
    Facts,
    Quantity,
    evidence_of,
    first_known,
    is_finished,
    measure,
    passes_of,
    speed_of_training,
    total,
    volumes_of,
)
from lsdflow_launch.planning.jobs import Job, jobs_of
from lsdflow_launch.slurm.table import SiteTable, cluster_of

PRICES_FILE = "prices.toml"
FIXED, TOTAL, DISK = "fixed", "total", "disk"
LEFT = ("cpu_hours", "gpu_hours", "walltime_s", "bytes_written", "files")
PLANNED = ("blocks", "voxels", "iterations")
CHUNK_VOX = 64


@dataclass(frozen=True)
class StageEstimate:
    """Numbers of a whole stage, and the share of it that is left to do."""

    numbers: Mapping[str, Quantity]
    share_left: float

    def as_dict(self) -> dict[str, Any]:
        """Return the estimate as stored in plan.json."""
        return {"share_left": self.share_left, **{name: q.as_dict() for name, q in self.numbers.items()}}

    def __getitem__(self, name: str) -> Quantity:
        return self.numbers.get(name, Quantity(None, "not known for this stage"))

    def left(self, name: str) -> Quantity:
        """Return a number for the share that is left to do."""
        return self[name].times(self.share_left) if self.share_left else Quantity(0, "it has finished")


def estimate(
    stage: str, facts: Facts, evidence: Callable[[str], Sequence[Evidence]], job: Job, *, finished: bool
) -> StageEstimate:
    """Return all numbers of a stage. facts: its plan. evidence: for each pass by its name."""
    units = units_of(stage, facts)
    nothing = facts.get("nothing_to_do") or ("no truth to compare with" if facts.get("truth") is False else "")
    if nothing or not units:
        why = Quantity(None, str(nothing or facts.get("not known yet") or "its blocks are not known yet"))
        return StageEstimate({"seconds": why, "walltime_s": why}, 0.0 if finished or nothing else 1.0)
    known = {name: evidence(name) for name in units}

    def of_passes(number: str) -> list[Quantity]:
        """Return a number of each pass."""
        return [first_known(known[name], number, one, job) for name, one in units.items()]

    whole, seconds = _sum_of(units), _at_most(total(of_passes("seconds")), facts.get("max_minutes"))
    numbers = {name: Quantity(whole[name], f"{stage} plan") for name in PLANNED if name in whole}
    numbers |= {"seconds": seconds, "walltime_s": seconds}
    numbers |= {number: total(of_passes(number)) for number in ("bytes_written", "files")}
    numbers |= {number: max(of_passes(number), key=lambda q: q.value or 0) for number in (RSS, VRAM)}
    numbers |= {} if job.device == "gpu" else {VRAM: Quantity(0, "no GPU is used")}
    if stage in BLOCK_STAGES:
        at_a_time = min(job.count, max(one["blocks"] for one in units.values()))
        parts = (seconds.times(1 / at_a_time), of_passes("outside")[0])
        numbers["walltime_s"] = total(parts) if seconds.value is not None else seconds
        numbers["seconds_per_block"] = seconds.times(1 / whole["blocks"])
        numbers["bytes_read"] = total(of_passes("bytes_read"))
    coordinator = [numbers["walltime_s"].times(job.coordinator_cores)] if job.coordinator_cores else []
    numbers["cpu_hours"] = total([seconds.times(job.cores), *coordinator]).times(1 / 3600)
    no_gpu = Quantity(None, "its share of a GPU is not known") if job.device == "gpu" else Quantity(0, "no GPU is used")
    numbers["gpu_hours"] = seconds.times(job.gpus / 3600) if job.gpus else no_gpu
    done = whole["done"] / whole["all"] if whole["all"] else 0.0
    return StageEstimate(numbers, 0.0 if finished else max(0.0, 1 - done))


def units_of(stage: str, facts: Facts) -> dict[str, Facts]:
    """Return the amounts of work in each pass of a stage by their units, and how much of `all` is `done`.

    The unit `one` does not grow. {} if the amounts are not known yet.
    """
    if stage == "prepare":
        volumes = volumes_of(facts)
        expected = sum(v["bytes_expected"] for v in volumes)
        amounts = {"bytes_expected": expected, "voxels": sum(math.prod(v["shape_vox"]) for v in volumes)}
        done = sum(v["bytes_expected"] for v in volumes if v.get("done"))
        return {"": {**amounts, "chunks": sum(map(_chunks, volumes)), "one": 1, "all": expected, "done": done}}
    if "max_iteration" in facts:
        wanted = facts["max_iteration"] or 0
        work = wanted * facts.get("multiply_adds", 0) / int(facts.get("processes") or 1)
        known = {name: amount for name, amount in (("iterations", wanted), ("multiply_adds", work)) if amount}
        return {"": {**known, "one": 1, "all": wanted, "done": facts.get("done_iterations") or 0}}
    if "blocks" not in facts:
        return {}
    tables = facts.get("tables", 0)
    return {name: {**_of_blocks(one), "tables": tables} for name, one in passes_of(facts).items()}


def _of_blocks(facts: Facts) -> Facts:
    blocks, read = facts["blocks"], facts.get("voxels_read_with_context", facts["voxels"])
    return {**facts, "voxels_of_a_block": read / blocks, "one": 1, "all": blocks, "done": facts.get("blocks_done", 0)}


def _chunks(volume: Facts) -> int:
    """Return the files of a volume: one for each chunk of raw, labels and mask."""
    chunks: int = math.prod(-(-n // CHUNK_VOX) for n in volume["shape_vox"])
    return chunks * (3 if volume.get("labelled") else 1)


def _sum_of(units: Mapping[str, Facts]) -> Facts:
    """Return the units of all passes together: their blocks are added, and each pass has all voxels."""
    first = next(iter(units.values()))
    return {**first, **{n: sum(one[n] for one in units.values()) for n in ("all", "done", "blocks") if n in first}}


def _at_most(seconds: Quantity, minutes: float | None) -> Quantity:
    """Return the seconds of a training, at most its limit."""
    if minutes is None or (seconds.value is not None and seconds.value <= 60 * minutes):
        return seconds
    return Quantity(60 * float(minutes), "its limit, max_minutes")


class Offer(StrictModel):
    """The prices of one hour or month; None: not known."""

    cpu_hour: float | None = Field(default=None, ge=0, description="price of one core for one hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="price of one GPU for one hour")
    gb_month: float | None = Field(default=None, ge=0, description="price of 10^9 bytes for one month")
    fixed_month: float = Field(default=0.0, ge=0, description="price of one month, whatever is computed")


class Prices(StrictModel):
    """prices.toml."""

    currency: str = Field(default="", description="name of the currency")
    months_kept: float = Field(default=1.0, ge=0, description="how many months the results are kept")
    offers: dict[str, Offer] = Field(description="one table for each offer")


def read_prices(experiment: Experiment, named: Path | None) -> Prices | None:
    """Return the user's prices: the named file, or prices.toml in the experiment's folder; None if there is none.

    Raises MissingInput (66) for a named file that does not exist, ConfigError (78) for a wrong one.
    """
    path = named or experiment.path.parent / PRICES_FILE
    if not path.is_file():
        if named is not None:
            raise MissingInput("no such file of prices", where=named)
        return None
    return replace(experiment, path=path, tables={"prices": read_toml(path)}).table("prices", Prices)


def costs_of(prices: Prices, estimates: Mapping[str, StageEstimate]) -> dict[str, dict[str, Quantity]]:
    """Return by offer the cost of each stage (hours that are left, months of all its bytes), the fixed one, and all."""
    found = {}
    for name, offer in prices.offers.items():
        parts = {stage: _cost_of(offer, prices.months_kept, e) for stage, e in estimates.items()}
        parts[FIXED] = Quantity(offer.fixed_month * prices.months_kept, f"{prices.months_kept:g} months")
        found[name] = {**parts, TOTAL: total(parts.values())}
    return found


def _cost_of(offer: Offer, months: float, estimated: StageEstimate) -> Quantity:
    gb_months = estimated["bytes_written"].times(months / 1e9)
    amounts = ((estimated.left("cpu_hours"), offer.cpu_hour), (estimated.left("gpu_hours"), offer.gpu_hour))
    return total(_priced(amount, price) for amount, price in (*amounts, (gb_months, offer.gb_month)))


def _priced(amount: Quantity, price: float | None) -> Quantity:
    if amount.value == 0 and not amount.at_least:
        return Quantity(0.0, "")
    return Quantity(None, "no price for a part of it") if price is None else amount.times(price)


@dataclass(frozen=True)
class PlanWarning:
    """A warning of a plan. certain: the known numbers alone exceed the limit."""

    stage: str
    what: str
    fix: str
    certain: bool = False


@dataclass(frozen=True)
class Plan:
    """All that `lsdflow plan` reports. facts: the answers of `<stage> plan`. costs: offer -> stage, fixed or total."""

    facts: Mapping[str, Facts]
    estimates: Mapping[str, StageEstimate]
    jobs: Mapping[str, Job]
    disk: FreeSpace
    on_slurm: bool
    costs: Mapping[str, Mapping[str, Quantity]]
    currency: str = ""
    warnings: Sequence[PlanWarning] = ()

    def left(self, name: str) -> Quantity:
        """Return a number summed over all stages, for the share that is left to do."""
        parts = [estimated.left(name) for estimated in self.estimates.values() if estimated.share_left]
        return total(parts) if parts else Quantity(0, "all is done")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as stored in plan.json."""
        return {
            "written": time.time(),
            "workers": "slurm" if self.on_slurm else "local",
            "stages": {stage: e.as_dict() for stage, e in self.estimates.items()},
            "left": {name: self.left(name).as_dict() for name in LEFT},
            **asdict(self.disk),
            "warnings": [asdict(warn) for warn in self.warnings],
            "cost": {offer: {what: q.as_dict() for what, q in parts.items()} for offer, parts in self.costs.items()},
            "currency": self.currency,
        }


def make_plan(
    experiment: Experiment,
    ask: Ask,
    *,
    prices: Prices | None = None,
    on_slurm: bool | None = None,
    volume_shape: Vox3 | None = None,
    workers: int = 0,
    measured: bool = False,
) -> Plan:
    """Run `plan` of all stages, measure if requested, and estimate every stage.

    on_slurm: None: as configured. volume_shape: of another target, in voxels. workers: of each stage with blocks; 0: as
    configured. Raises the errors of the experiment.
    """
    on_slurm = experiment.uses_cluster if on_slurm is None else on_slurm
    here = plans_of(experiment, ask)
    facts = here if volume_shape is None else plans_of(experiment, ask, volume_shape)
    found = measure(experiment, _stages_to_measure(experiment, here), ask) if measured else {}
    jobs = {s: jobs_of(experiment, s, wanted, on_slurm=on_slurm, workers=workers) for s, wanted in facts.items()}
    estimates = {}
    for stage, wanted in facts.items():
        evidence = evidence_of(experiment, stage, here[stage], found.get(stage, {}), jobs[stage])
        finished = is_finished(experiment, stage) and (volume_shape is None or stage in TRAININGS)
        estimates[stage] = estimate(stage, wanted, evidence, jobs[stage], finished=finished)
    costs, currency = (costs_of(prices, estimates), prices.currency) if prices else ({}, "")
    plan = Plan(facts, estimates, jobs, free_space(experiment.layout.root), on_slurm, costs, currency)
    return replace(plan, warnings=[*_warnings_of(experiment, plan)])


def _stages_to_measure(experiment: Experiment, facts: Mapping[str, Facts]) -> list[str]:
    """Return the stages that can compute a block or a step now; a training that has begun reports its own speed."""
    left = {stage: plan for stage, plan in facts.items() if not is_finished(experiment, stage)}
    steps = [s for s, plan in left.items() if "max_iteration" in plan and not speed_of_training(experiment, s)]
    return [*steps, *(stage for stage, plan in left.items() if "blocks" in plan)]


def _warnings_of(experiment: Experiment, plan: Plan) -> Iterator[PlanWarning]:
    """Yield warnings about the limits that a run of this plan would reach."""
    yield from _disk_warnings(plan)
    for stage, estimated in plan.estimates.items():
        per_block, limit = estimated["seconds_per_block"].value, experiment.compute.block_timeout_s
        if estimated.share_left and per_block is not None and per_block > limit:
            what = f"a block takes {duration(per_block)}, compute.block_timeout_s is {duration(limit)}"
            yield PlanWarning(stage, what, f"compute.block_timeout_s = {10 * per_block:.0f}")
        if estimated.share_left and plan.on_slurm:
            yield from _job_warnings(cluster_of(experiment), stage, estimated, plan.jobs[stage])


def _disk_warnings(plan: Plan) -> Iterator[PlanWarning]:
    needed, files, disk = plan.left("bytes_written"), plan.left("files"), plan.disk
    fix = "free some space, put the experiment on a larger disk, or choose a part of the volume with roi"
    if needed.value is not None and needed.value * SPARE > disk.free_bytes:
        what = f"{_about(needed, size)} are still to be written, {size(disk.free_bytes)} are free"
        yield PlanWarning(DISK, what, fix, certain=needed.value > disk.free_bytes)
    if files.value is not None and disk.free_files is not None and files.value > disk.free_files:
        what = f"{files.value:.0f} files are still to be made, {disk.free_files} may be"
        yield PlanWarning(DISK, what, "larger blocks make fewer files; or ask for more inodes", certain=True)


def _job_warnings(table: SiteTable, stage: str, estimated: StageEstimate, job: Job) -> Iterator[PlanWarning]:
    walltime, limit, key = estimated.left("walltime_s"), job.stage_limit_s, f"cluster.{stage}.time"
    if walltime.value is not None and limit and walltime.value > limit - table.warn_s:
        what = f"{_about(walltime, duration)} of work, {key} is {duration(limit)}: the job comes back "
        if walltime.value <= (table.max_restarts + 1) * (limit - table.warn_s):
            yield PlanWarning(stage, f"{what}into the queue and resumes", f"{key} or more workers")
        else:
            what += f"{table.max_restarts} times, which is not enough"
            yield PlanWarning(stage, what, f"more of {key}, or cluster.max_restarts")
    of_jobs = f"cluster.{stage}.{'worker_' if stage in BLOCK_STAGES else ''}"
    block, rss = estimated["seconds_per_block"].value, estimated[RSS].value
    if block is not None and job.time_limit_s and block > job.time_limit_s - table.warn_s:
        what = f"a block takes {duration(block)}, a worker has {duration(job.time_limit_s)}: no block is ever done"
        yield PlanWarning(stage, what, f"more of {of_jobs}time, or smaller blocks")
    if rss is not None and job.memory_bytes and rss > job.memory_bytes:
        what = f"a worker needs {size(rss)}, it asks for {size(job.memory_bytes)}"
        yield PlanWarning(stage, what, f"more of {of_jobs}mem, or smaller blocks")


def _about(quantity: Quantity, text: Any) -> str:
    return f"{'at least ' if quantity.at_least else 'about '}{text(quantity.value)}"
