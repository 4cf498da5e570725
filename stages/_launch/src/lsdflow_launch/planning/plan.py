"""A plan of the whole chain: estimates of all stages, space on the disk, warnings of limits, and cost.

work      seconds in the blocks of all passes, for one worker
walltime  work / workers at a time + start of the command and serial time of one process

The user names the prices, in prices.toml (README.md of this package); lsdflow contains none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import BLOCK_STAGES, TRAININGS, Experiment
from lsdflow_contract.files import read_toml
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.model import StrictModel
from lsdflow_launch.commands import Ask
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.disk import SPARE, FreeSpace, free_space
from lsdflow_launch.output import duration, size
from lsdflow_launch.planning import evidence as known
from lsdflow_launch.planning.evidence import RSS, VRAM, Evidence, Facts, Quantity, first_known, total
from lsdflow_launch.planning.jobs import Job, local_job, slurm_job

RESULTS, DISK, HERE = "results", "disk", "this machine"
LEFT = ("cpu_hours", "gpu_hours", "walltime_s", "bytes_written", "files")
CHUNK_VOX = 64
# prepare computes fewer blocks of a volume in one process.
BLOCKS_FOR_WORKERS = 8
Price = Annotated[float | None, Field(ge=0)]


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
    stage: str, facts: Facts, evidence: Mapping[str, Sequence[Evidence]], job: Job, *, finished: bool
) -> StageEstimate:
    """Return all numbers of a stage. facts: its plan. evidence: for each pass by its name."""
    units = units_of(stage, facts)
    nothing = facts.get("nothing_to_do") or ("no truth to compare with" if facts.get("truth") is False else "")
    if nothing or not units:
        why = Quantity(None, str(nothing or facts.get("not known yet") or "its blocks are not known yet"))
        return StageEstimate({"seconds": why, "walltime_s": why}, 0.0 if finished or nothing else 1.0)

    def of_passes(number: str) -> list[Quantity]:
        """Return a number of each pass."""
        return [first_known(evidence[name], number, one, job) for name, one in units.items()]

    whole, blocks = next(iter(units.values())), sum(one.get("blocks", 0) for one in units.values())
    alone: list[Quantity] = []
    planned = {"blocks": blocks, "voxels": whole.get("voxels"), "iterations": whole.get("iterations")}
    numbers = {name: Quantity(amount, f"{stage} plan") for name, amount in planned.items() if amount}
    seconds, minutes = total(of_passes("seconds")), facts.get("max_minutes")
    if minutes is not None and (seconds.value is None or seconds.value > 60 * minutes):
        seconds = Quantity(60 * float(minutes), "its limit, max_minutes")
    numbers |= {"seconds": seconds, "walltime_s": seconds}
    numbers |= {number: total(of_passes(number)) for number in ("bytes_written", "files")}
    numbers |= {number: max(of_passes(number), key=lambda q: q.value or 0) for number in (RSS, VRAM)}
    if blocks:
        at_a_time = min(job.count * job.processes, max(one["blocks"] for one in units.values()))
        outside = of_passes("outside")[0]
        numbers["walltime_s"] = total((seconds.times(1 / at_a_time), outside)) if seconds.value is not None else seconds
        # The one process that does the rest; on a cluster it also waits for the workers.
        alone = [numbers["walltime_s"].times(job.coordinator_cores) if job.coordinator_cores else outside]
        numbers |= {"seconds_per_block": seconds.times(1 / blocks), "bytes_read": total(of_passes("bytes_read"))}
    numbers["cpu_hours"] = total([seconds.times(job.cores / job.processes), *alone]).times(1 / 3600)
    if job.device == "cpu" and not job.gpus:
        numbers |= dict.fromkeys((VRAM, "gpu_hours"), Quantity(0, "no GPU is used"))
    else:
        shared = Quantity(None, "its share of a GPU is not known")
        numbers["gpu_hours"] = seconds.times(job.gpus / 3600) if job.gpus else shared
    amount, done = (sum(one[name] for one in units.values()) for name in ("all", "done"))
    return StageEstimate(numbers, 0.0 if finished else 1 - done / amount if amount else 1.0)


def units_of(stage: str, facts: Facts) -> dict[str, Facts]:
    """Return the amounts of work in each pass of a stage by their units, and how much of `all` is `done`.

    The unit `one` does not grow. {} if the amounts are not known yet.
    """
    if stage == "prepare":
        volumes = [volume for volume in facts.values() if isinstance(volume, dict) and "bytes_expected" in volume]
        expected = sum(v["bytes_expected"] for v in volumes)
        done = sum(v["bytes_expected"] for v in volumes if v.get("done"))
        voxels, chunks = sum(math.prod(v["shape_vox"]) for v in volumes), sum(map(_chunks, volumes))
        many = sum(n for volume in volumes if (n := volume.get("blocks", 0)) >= BLOCKS_FOR_WORKERS)
        amounts = {"bytes_expected": expected, "voxels": voxels, "chunks": chunks, **({"blocks": many} if many else {})}
        return {"": {**amounts, "one": 1, "all": expected, "done": done}}
    if "max_iteration" in facts:
        wanted = facts["max_iteration"] or 0
        work = wanted * facts.get("multiply_adds", 0) / int(facts.get("processes") or 1)
        amounts = {name: amount for name, amount in (("iterations", wanted), ("multiply_adds", work)) if amount}
        return {"": {**amounts, "one": 1, "all": wanted, "done": facts.get("done_iterations") or 0}}
    passes = known.passes_of(facts) if "blocks" in facts else {}
    return {name: {**_units_of_blocks(one), "tables": facts.get("tables", 0)} for name, one in passes.items()}


def _units_of_blocks(facts: Facts) -> Facts:
    of_a_block = facts.get("voxels_read_with_context", facts["voxels"]) / facts["blocks"]
    share = {"all": facts["blocks"], "done": facts.get("blocks_done", 0)}
    return {**facts, **share, "voxels_of_a_block": of_a_block, "one": 1}


def _chunks(volume: Facts) -> int:
    """Return the files of a volume: one for each chunk of raw, labels and mask."""
    chunks: int = math.prod(-(-n // CHUNK_VOX) for n in volume["shape_vox"])
    return chunks * (3 if volume.get("labelled") else 1)


class Machine(StrictModel):
    """A type of machine that is paid as a whole: its cores and GPUs, and its price for an hour."""

    type: str
    cores: int = Field(ge=1)
    gpus: int = Field(default=0, ge=0)
    hour: float = Field(ge=0)

    def count(self, job: Job) -> int:
        """Return how many of these machines such jobs fill."""
        return math.ceil(job.count * max(job.cores / self.cores, job.gpus / self.gpus if self.gpus else 0))

    def hours(self, cpu_hours: Quantity, gpu_hours: Quantity) -> Quantity:
        """Return the hours of full machines: those of its cores or of its GPUs, whichever are more."""
        shares = (cpu_hours.times(1 / self.cores), gpu_hours.times(1 / self.gpus) if self.gpus else gpu_hours)
        partly = any(share.value is None or share.at_least for share in shares)
        known = [share.value for share in shares if share.value is not None]
        if (partly and not any(known)) or (gpu_hours.value and not self.gpus):
            return Quantity(None, "its hours of GPUs are not known" if self.gpus else f"a {self.type} has no GPU")
        return Quantity(max(known), cpu_hours.source, partly)


class Offer(StrictModel):
    """Prices of a core and of a GPU for an hour, of 10^9 bytes for a month, and of a month whatever is computed.

    machines: partition of the jobs (or "this machine") -> what is paid there instead of cores and GPUs.
    """

    cpu_hour: Price = None
    gpu_hour: Price = None
    gb_month: Price = None
    fixed_month: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    machines: dict[str, Machine] = Field(default={})


class Prices(StrictModel):
    """prices.toml: a label, how many months the results are kept, and one table for each offer."""

    currency: str = ""
    months_kept: float = Field(default=1.0, ge=0)
    offers: dict[str, Offer]


def read_prices(experiment: Experiment, named: Path | None) -> Prices | None:
    """Return the user's prices: the named file, or prices.toml in the experiment's folder; None if there is none.

    Raises MissingInput (66) for a named file that does not exist, ConfigError (78) for a wrong one.
    """
    path = named or experiment.path.parent / "prices.toml"
    if path.is_file():
        return replace(experiment, path=path, tables={"prices": read_toml(path)}).table("prices", Prices)
    if named is not None:
        raise MissingInput("no such file of prices", where=named)
    return None


@dataclass(frozen=True)
class Cost:
    """What the rest of a run costs with an offer: hours of each stage, what is paid by the month, and their sum.

    machines: of each stage whose partition has machines in the offer, how many of which type, and their hours.
    """

    stages: Mapping[str, Quantity]
    monthly: Mapping[str, Quantity]
    total: Quantity
    machines: Mapping[str, tuple[int, str, Quantity]]

    def as_dict(self) -> dict[str, Any]:
        """Return the cost as stored in plan.json."""
        parts = {"stages": self.stages, "monthly": self.monthly}
        named = {stage: {"count": n, "type": kind, "hours": q.value} for stage, (n, kind, q) in self.machines.items()}
        found = {name: {what: q.as_dict() for what, q in part.items()} for name, part in parts.items()}
        return {**found, "total": self.total.as_dict(), "machines": named}


def cost_of(offer: Offer, months_kept: float, estimates: Mapping[str, StageEstimate], jobs: Mapping[str, Job]) -> Cost:
    """Return what the hours that are left cost, and each month in which all results are kept."""
    stages, machines = dict[str, Quantity](), dict[str, tuple[int, str, Quantity]]()
    for stage, estimated in estimates.items():
        cpu, gpu, job = estimated.left("cpu_hours"), estimated.left("gpu_hours"), jobs[stage]
        machine = offer.machines.get(job.partition)
        if machine is None:
            stages[stage] = total((_priced(cpu, offer.cpu_hour), _priced(gpu, offer.gpu_hour)))
            continue
        hours = machine.hours(cpu, gpu)
        machines[stage], stages[stage] = (machine.count(job), machine.type, hours), _priced(hours, machine.hour)
    written = total(estimated["bytes_written"] for estimated in estimates.values())
    fixed = {name: Quantity(price, "a fixed price") for name, price in offer.fixed_month.items()}
    monthly = {RESULTS: _priced(written.times(1e-9), offer.gb_month), **fixed}
    everything = (*stages.values(), *(price.times(months_kept) for price in monthly.values()))
    return Cost(stages, monthly, total(everything), machines)


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
    """All that `lsdflow plan` reports. facts: the answers of `<stage> plan`. costs: by the name of the offer."""

    facts: Mapping[str, Facts]
    estimates: Mapping[str, StageEstimate]
    jobs: Mapping[str, Job]
    disk: FreeSpace
    on_slurm: bool
    costs: Mapping[str, Cost]
    prices: Prices
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
            "cost": {offer: cost.as_dict() for offer, cost in self.costs.items()},
            "currency": self.prices.currency,
        }


def make_plan(
    experiment: Experiment,
    ask: Ask,
    prices: Prices | None = None,
    on_slurm: bool | None = None,
    volume_shape: Vox3 | None = None,
    workers: int = 0,
    *,
    measured: bool = False,
) -> Plan:
    """Run `plan` of all stages, measure if requested, and estimate every stage.

    on_slurm: None: as configured. volume_shape: of another target, in voxels. workers: of each stage with blocks; 0: as
    configured. Raises the errors of the experiment.
    """
    on_slurm = experiment.uses_cluster if on_slurm is None else on_slurm
    here = plans_of(experiment, ask)
    facts = here if volume_shape is None else plans_of(experiment, ask, volume_shape)
    estimates, jobs = dict[str, StageEstimate](), dict[str, Job]()
    for stage, wanted in facts.items():
        on_cluster = slurm_job(experiment, stage, workers) if on_slurm else None
        job = jobs[stage] = on_cluster or local_job(experiment, stage, wanted, workers)
        # A training that has begun reports its own speed.
        can_run = "blocks" in here[stage] or here[stage].get("done_iterations") == 0
        found = known.measure(experiment, stage, ask) if measured and can_run else {}
        names = units_of(stage, wanted)
        evidence = {name: known.evidence_of(experiment, stage, name, here[stage], found, job) for name in names}
        finished = known.is_finished(experiment, stage) and (volume_shape is None or stage in TRAININGS)
        found_of_stage = estimate(stage, wanted, evidence, job, finished=finished)
        times = [e.left("walltime_s") for e in (*estimates.values(), found_of_stage) if e.share_left]
        ends = {"ends_s": total(times)} if times else {}
        estimates[stage] = replace(found_of_stage, numbers={**found_of_stage.numbers, **ends})
    paid = prices or Prices(offers={})
    costs = {name: cost_of(offer, paid.months_kept, estimates, jobs) for name, offer in paid.offers.items()}
    plan = Plan(facts, estimates, jobs, free_space(experiment.layout.root), on_slurm, costs, paid)
    timeout_s = experiment.compute.block_timeout_s
    return replace(plan, warnings=[*_disk_warnings(plan), *_limit_warnings(plan, timeout_s)])


def _disk_warnings(plan: Plan) -> Iterator[PlanWarning]:
    needed, files, disk = plan.left("bytes_written"), plan.left("files"), plan.disk
    if _above(needed, disk.free_bytes / SPARE):
        what = f"{_about(needed, size)} are still to be written, {size(disk.free_bytes)} are free"
        fix = "free some space, put the experiment on a larger disk, or choose a part of the volume with roi"
        yield PlanWarning(DISK, what, fix, certain=_above(needed, disk.free_bytes))
    if _above(files, disk.free_files):
        what = f"{files.value:.0f} files are still to be made, {disk.free_files} may be"
        yield PlanWarning(DISK, what, "larger blocks make fewer files; or ask for more inodes", certain=True)


def _limit_warnings(plan: Plan, block_timeout_s: float) -> Iterator[PlanWarning]:
    """Yield a warning for each limit of blocks and jobs that the rest of the run would exceed."""
    for stage, estimated in plan.estimates.items():
        job, of_jobs = plan.jobs[stage], f"cluster.{stage}.{'worker_' if stage in BLOCK_STAGES else ''}"
        if job.partition == HERE and estimated.share_left and job.count * job.cores > available_cores():
            what = f"its workers use {job.count * job.cores} cores, this machine has {available_cores()}"
            yield PlanWarning(stage, what, "its time holds for a machine that has them; else use fewer workers")
        block, work = estimated["seconds_per_block"], estimated.left("walltime_s")
        for what, needed, limit, text, key in (
            ("a block", block, block_timeout_s, duration, "compute.block_timeout_s"),
            ("a block", block, job.time_limit_s, duration, f"{of_jobs}time"),
            ("a worker", estimated[RSS], job.memory_bytes, size, f"{of_jobs}mem"),
            ("its work", work, job.stage_limit_s, duration, f"cluster.{stage}.time, with all restarts,"),
        ):
            if estimated.share_left and limit is not None and _above(needed, limit):
                more = f"{what} needs {_about(needed, text)}, {key} allows {text(limit)}"
                yield PlanWarning(stage, more, "allow more, or use smaller blocks or more workers")


def _above(quantity: Quantity, limit: float | None) -> bool:
    return limit is not None and quantity.value is not None and quantity.value > limit


def _about(quantity: Quantity, text: Any) -> str:
    return f"{'at least ' if quantity.at_least else 'about '}{text(quantity.value)}"
