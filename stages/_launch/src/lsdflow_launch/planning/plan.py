"""A plan of the whole chain: estimates of all stages, hours by partition, space on the disk, warnings, cost.

The warnings name the limits that a run would reach: the space on the disk, time limits and memory of jobs, the timeout
of a block. The user names the prices in prices.toml; lsdflow contains none:

currency = "EUR"           # a label
months_kept = 3            # how long the results stay on the disk

[offers.on-demand]         # any number of offers, each is a column of the plan
cpu_hour = 0.05            # one core, one hour
gpu_hour = 3.0             # one GPU, one hour (in addition to the cores of its machine)
gb_month = 0.02            # 10^9 bytes, one month
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import read_toml
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.model import StrictModel
from lsdflow_launch.chain import BLOCK_STAGES
from lsdflow_launch.commands import Ask
from lsdflow_launch.descriptions import (
    plans_of,
)
from lsdflow_launch.output import duration, size
from lsdflow_launch.planning.estimate import StageEstimate, estimate
from lsdflow_launch.planning.evidence import (
    Evidence,
    Facts,
    Quantity,
    StageRecord,
    measure,
    record_of,
    recorded_run,
    require_finished_something,
    total,
)
from lsdflow_launch.planning.resources import DiskUse, FreeSpace, Job, StageWorkers, free_space, workers_of
from lsdflow_launch.slurm.table import cluster_of

PRICES_FILE = "prices.toml"
SPARE = 1.1
DISK = "disk"
HOURS = ("cpu_hours", "gpu_hours")


class Offer(StrictModel):
    """The prices of one hour or month; None: not known."""

    cpu_hour: float | None = Field(default=None, ge=0, description="price of one core for one hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="price of one GPU for one hour")
    gb_month: float | None = Field(default=None, ge=0, description="price of 10^9 bytes for one month")


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


def cost_of(prices: Prices, hours: Mapping[str, Quantity], size_bytes: Quantity) -> dict[str, Quantity]:
    """Return, by offer, the cost of the remaining hours (cpu_hours, gpu_hours) and of the bytes of the results."""
    found = {}
    for name, offer in prices.offers.items():
        gb_months = size_bytes.times(prices.months_kept / 1e9)
        parts = (
            (hours["cpu_hours"], offer.cpu_hour),
            (hours["gpu_hours"], offer.gpu_hour),
            (gb_months, offer.gb_month),
        )
        found[name] = total(_priced(amount, price) for amount, price in parts)
    return found


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

    def as_dict(self) -> dict[str, Any]:
        """Return the warning as stored in plan.json."""
        return asdict(self)


@dataclass(frozen=True)
class PlanOptions:
    """The options of `lsdflow plan`."""

    measure: bool = False
    like: Path | None = None
    prices: Path | None = None
    on_slurm: bool | None = None
    volume_shape: Vox3 | None = None


@dataclass(frozen=True)
class Plan:
    """All that `lsdflow plan` reports. `facts`: the answers of `<stage> plan`."""

    facts: dict[str, Facts]
    estimates: dict[str, StageEstimate]
    workers: dict[str, StageWorkers]
    disk: FreeSpace
    on_slurm: bool
    warnings: list[PlanWarning]
    costs: dict[str, Quantity] = field(default_factory=dict)
    currency: str = ""
    written: float = field(default_factory=time.time)

    def left(self, name: str) -> Quantity:
        """Return a number summed over all stages, for the share that is left to do."""
        return _sum_of_left(name, list(self.estimates.values()))

    def by_partition(self) -> dict[str, dict[str, Quantity]]:
        """Return the remaining hours, by the partition of the workers of a stage."""
        found: dict[str, dict[str, Quantity]] = {}
        for partition in dict.fromkeys(a.workers.partition for a in self.workers.values()):
            stages = [s for s, a in self.workers.items() if a.workers.partition == partition]
            estimates = [self.estimates[s] for s in stages]
            found[partition] = {name: _sum_of_left(name, estimates) for name in (*HOURS, "walltime_s")}
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as stored in plan.json."""
        return {
            "written": self.written,
            "workers": "slurm" if self.on_slurm else "local",
            "stages": {stage: e.as_dict() for stage, e in self.estimates.items()},
            "left_by_partition": {
                p: {name: q.as_dict() for name, q in numbers.items()} for p, numbers in self.by_partition().items()
            },
            "bytes_to_come": self.left("bytes_written").as_dict(),
            "files_to_come": self.left("files").as_dict(),
            "free_bytes": self.disk.free_bytes,
            "free_files": self.disk.free_files,
            "warnings": [warn.as_dict() for warn in self.warnings],
            "cost": {offer: q.as_dict() for offer, q in self.costs.items()},
            "currency": self.currency,
        }


def _sum_of_left(name: str, estimates: list[StageEstimate]) -> Quantity:
    left = [e[name].times(e.share_left) for e in estimates if e.share_left > 0]
    return total(left) if left else Quantity(0, "all is done")


def make_plan(experiment: Experiment, options: PlanOptions, ask: Ask) -> Plan:
    """Run `plan` of all stages, measure if requested, and estimate every stage.

    Raises the errors of the experiment and prices files, and MissingInput (66) for a --like without a finished stage.
    """
    prices = read_prices(experiment, options.prices)
    on_slurm = experiment.uses_cluster if options.on_slurm is None else options.on_slurm
    evidence = _gather(experiment, options, ask)
    workers = {s: workers_of(experiment, s, e.here.facts, on_slurm=on_slurm) for s, e in evidence.items()}
    evidence = {s: replace(e, has_gpu=workers[s].workers.gpus > 0) for s, e in evidence.items()}
    estimates = {s: estimate(s, evidence[s], workers[s]) for s in evidence}
    facts = {stage: e.here.facts for stage, e in evidence.items()}
    plan = Plan(facts, estimates, workers, free_space(experiment.layout.root), on_slurm, [])
    plan.warnings.extend(warnings_of(experiment, plan))
    if prices is not None:
        hours = {name: plan.left(name) for name in HOURS}
        size = total(e["bytes_written"] for e in estimates.values())
        plan.costs.update(cost_of(prices, hours, size))
    currency = prices.currency if prices is not None else ""
    return Plan(facts, estimates, workers, plan.disk, on_slurm, plan.warnings, plan.costs, currency)


def warnings_of(experiment: Experiment, plan: Plan) -> list[PlanWarning]:
    """Return warnings about the limits that a run of this plan would reach."""
    found = [*_disk_warnings(plan)]
    for stage, estimated in plan.estimates.items():
        if estimated.share_left > 0 and stage in BLOCK_STAGES:
            found += _block_time_warnings(experiment, stage, estimated)
        if estimated.share_left > 0 and plan.on_slurm:
            found += _job_warnings(experiment, plan, stage)
    return found


def _disk_warnings(plan: Plan) -> Iterator[PlanWarning]:
    needed, files, disk = plan.left("bytes_written"), plan.left("files"), plan.disk
    fix = "free some space, put the experiment on a larger disk, or choose a part of the volume with roi"
    if needed.value is not None and needed.value * SPARE > disk.free_bytes:
        what = f"{_about(needed, size)} are still to be written, {size(disk.free_bytes)} are free"
        yield PlanWarning(DISK, what, fix, certain=needed.value > disk.free_bytes)
    if files.value is not None and disk.free_files is not None and files.value > disk.free_files:
        what = f"{files.value:.0f} files are still to be made, {disk.free_files} may be"
        yield PlanWarning(DISK, what, "larger blocks make fewer files; or ask for more inodes", certain=True)


def _block_time_warnings(experiment: Experiment, stage: str, estimated: StageEstimate) -> Iterator[PlanWarning]:
    per_block, limit = estimated["seconds_per_block"], experiment.compute.block_timeout_s
    if per_block.value is not None and per_block.value > limit:
        what = f"a block takes {duration(per_block.value)}, compute.block_timeout_s is {duration(limit)}"
        yield PlanWarning(stage, what, f"compute.block_timeout_s = {10 * per_block.value:.0f}")


def _job_warnings(experiment: Experiment, plan: Plan, stage: str) -> Iterator[PlanWarning]:
    table, stage_workers, estimated = cluster_of(experiment), plan.workers[stage], plan.estimates[stage]
    walltime, starts = estimated["walltime_s"].times(estimated.share_left), table.max_restarts + 1
    whole = stage_workers.coordinator or stage_workers.workers
    key = f"cluster.{stage}.time"
    if walltime.value is not None and whole.time_limit_s and walltime.value > whole.time_limit_s - table.warn_s:
        what = f"{_about(walltime, duration)} of work, {key} is {duration(whole.time_limit_s)}: the job comes back "
        enough = walltime.value <= starts * (whole.time_limit_s - table.warn_s)
        what += "into the queue and resumes" if enough else f"{table.max_restarts} times, which is not enough"
        yield PlanWarning(
            stage, what, f"{key} or more workers" if enough else f"more of {key}, or cluster.max_restarts"
        )
    yield from _worker_warnings(stage, estimated, stage_workers.workers, table.warn_s)


def _worker_warnings(stage: str, estimated: StageEstimate, workers: Job, warn_s: int) -> Iterator[PlanWarning]:
    prefix = "worker_" if stage in BLOCK_STAGES else ""
    block, rss = estimated["seconds_per_block"].value, estimated["rss_per_worker_bytes"].value
    if block is not None and workers.time_limit_s and block > workers.time_limit_s - warn_s:
        what = f"a block takes {duration(block)}, a worker has {duration(workers.time_limit_s)}: no block is ever done"
        yield PlanWarning(stage, what, f"more of cluster.{stage}.{prefix}time, or smaller blocks")
    if rss is not None and workers.memory_bytes and rss > workers.memory_bytes:
        what = f"a worker needs {size(rss)}, it asks for {size(workers.memory_bytes)}"
        yield PlanWarning(stage, what, f"more of cluster.{stage}.{prefix}mem, or smaller blocks")


def _about(quantity: Quantity, text: Any) -> str:
    return f"{'at least ' if quantity.at_least else 'about '}{text(quantity.value)}"


def _gather(experiment: Experiment, options: PlanOptions, ask: Ask) -> dict[str, Evidence]:
    facts = plans_of(experiment, ask, options.volume_shape)
    like = [_like(options.like, ask)]
    if options.volume_shape is None:
        here = {stage: record_of(experiment, stage, answer) for stage, answer in facts.items()}
    else:
        here = {stage: StageRecord(answer, DiskUse()) for stage, answer in facts.items()}
        like.append(_records_of(experiment, ask))
    measured = measure(experiment, _stages_to_measure(here), ask) if options.measure else {}
    like.append(recorded_run())
    known = {
        stage: [records[stage] for records in like if stage in records and records[stage].finished] for stage in here
    }
    return {stage: Evidence(record, measured.get(stage, {}), tuple(known[stage])) for stage, record in here.items()}


def _stages_to_measure(here: Mapping[str, StageRecord]) -> list[str]:
    """Return the stages that can compute a block or a step now, without trainings whose speed is already recorded."""
    blocks = [s for s, record in here.items() if s in BLOCK_STAGES and "blocks" in record.facts and not record.finished]
    steps = [s for s, record in here.items() if "max_iteration" in record.facts and not record.manifest.get("it_per_s")]
    return [*steps, *blocks]


def _like(folder: Path | None, ask: Ask) -> dict[str, StageRecord]:
    if folder is None:
        return {}
    other = load_experiment(folder)
    records = _records_of(other, ask, str(folder))
    require_finished_something(other, records)
    return records


def _records_of(experiment: Experiment, ask: Ask, where: str = "this experiment") -> dict[str, StageRecord]:
    return {stage: record_of(experiment, stage, facts, where) for stage, facts in plans_of(experiment, ask).items()}
