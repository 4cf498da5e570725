"""The command `plan`, and its table for the terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.errors import StageError, StorageFailure, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment, nearest
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Vox3
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import count, duration, hours, money, plain_console, size
from lsdflow_launch.planning.evidence import Quantity, gpu_lines, machines
from lsdflow_launch.planning.plan import LEFT, Plan, make_plan, read_prices
from lsdflow_launch.slurm.table import MOST_WORKERS

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("lsdflow.plan")
ON_SLURM = {"": None, "local": False, "slurm": True}
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time", "walltime_s", duration),
    ("ends", "ends_s", duration),
    ("RAM", "rss_per_worker_bytes", size),
    ("VRAM", "vram_per_worker_bytes", size),
    ("written", "bytes_written", size),
    ("blocks", "blocks", count),
    ("a block", "seconds_per_block", duration),
    ("read", "bytes_read", size),
    ("files", "files", count),
    ("CPU", "cpu_hours", hours),
    ("GPU", "gpu_hours", hours),
)
# A narrow terminal gets the first columns only; --json has all.
WIDE, NARROW_COLUMNS = 132, 5
SOURCES = (("time", "walltime_s"), ("RAM", "rss_per_worker_bytes"), ("written", "bytes_written"))


def add_plan_verb(app: typer.Typer) -> None:
    """Register `plan`."""

    @app.command()
    def plan(
        folder: Folder,
        measure: Annotated[
            bool, typer.Option("--measure", help="measure a block (or training steps) of each stage that can run now")
        ] = False,
        prices: Annotated[
            Path | None, typer.Option(help="file with prices (default: prices.toml of the experiment)")
        ] = None,
        volume_shape: Annotated[
            str, typer.Option(help="plan for a target of this shape instead: voxels z,y,x, such as 10000,10000,10000")
        ] = "",
        workers: Annotated[
            int, typer.Option(min=0, max=MOST_WORKERS, help="workers of every stage with blocks; 0: as configured")
        ] = 0,
        backend: Annotated[
            str, typer.Option(help="local or slurm (default: slurm if experiment.toml has a cluster table)")
        ] = "",
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Estimate disk, files, memory, hours and cost of a run from measured blocks; writes DIR/plan.json."""
        with exit_codes(debug, as_json):
            experiment, shape = load_experiment(folder, override or []), _shape_of(volume_shape)
            if backend not in ON_SLURM:
                fix = nearest(backend, list(ON_SLURM))
                raise UsageError(f"unknown backend {backend!r}", wanted="local or slurm", fix=fix)
            ask, named, on_slurm = choose_ask(experiment), read_prices(experiment, prices), ON_SLURM[backend]
            estimated = make_plan(experiment, ask, named, on_slurm, shape, workers, measured=measure)
            if as_json:
                typer.echo(json.dumps(_for_json(estimated)))
            else:
                show_plan(estimated, plain_console())
                typer.echo("".join(f"{line}\n" for line in gpu_lines(experiment)), nl=False)
            if shape is None:
                _store(experiment, estimated, as_json)
        if any(warn.certain for warn in estimated.warnings):
            raise typer.Exit(StorageFailure.exit_code)


def _shape_of(text: str) -> Vox3 | None:
    """Return the voxels of "z,y,x"; None for an empty text. Raises UsageError (2) for anything else."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        wanted = "voxels z,y,x, such as 10000,10000,10000"
        raise UsageError("not a shape", where="--volume-shape", wanted=wanted, found=text)
    z, y, x = map(int, parts)
    return z, y, x


def _for_json(plan: Plan) -> dict[str, Any]:
    """Return the plan of each stage with its estimate, and what concerns the experiment."""
    whole = plan.as_dict()
    estimates = whole.pop("stages")
    return {s: {**facts, "estimate": estimates[s]} for s, facts in plan.facts.items()} | {"experiment": whole}


def _store(experiment: Experiment, plan: Plan, as_json: bool) -> None:
    """Write DIR/plan.json, whose times `status` shows."""
    try:
        write_json(experiment.layout.plan, plan.as_dict())
    except StageError as error:
        LOG.warning("the plan is not kept: %s", error.message())
        return
    if not as_json:
        typer.echo(f"wrote {experiment.layout.plan}, whose times lsdflow status shows as planned")


def text_of(quantity: Quantity, text: Callable[[float], str]) -> str:
    """Return a number as text, with '>' before a lower bound. The lines below the table name the sources."""
    if quantity.value is None or (quantity.value == 0 and quantity.at_least):
        return "not known"
    return f"{'> ' if quantity.at_least else ''}{text(quantity.value)}"


def _cost(cost: Quantity) -> str:
    return text_of(cost, "{:.2f}".format if cost.at_least else money)


def show_plan(plan: Plan, console: Console) -> None:
    """Print the table of stages, the sources of its numbers, what is left in total, warnings and cost."""
    # Loading rich takes time that --json does not need.
    from rich.table import Table

    columns = COLUMNS if console.width >= WIDE else COLUMNS[:NARROW_COLUMNS]
    table = Table("stage", box=None, pad_edge=False, header_style="bold")
    for head in ("left", "workers", *(head for head, _, _ in columns), *plan.costs):
        table.add_column(head, justify="right", no_wrap=True)
    for stage, estimate in plan.estimates.items():
        job = plan.jobs[stage]
        cells = [text_of(estimate[name], text) if name in estimate.numbers else "" for _, name, text in columns]
        cells += [_cost(costs.stages[stage]) for costs in plan.costs.values()]
        workers = f"{job.count} x {job.cores} on {job.partition}"
        table.add_row(stage, f"{100 * estimate.share_left:.0f} %", workers, *cells)
    console.print(table)
    for line in (*_sources(plan), *_totals(plan)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _sources(plan: Plan) -> Iterator[str]:
    yield "where from:"
    for stage, estimate in plan.estimates.items():
        found: dict[str, list[str]] = {}
        for word, name in SOURCES:
            if estimate[name].value is not None or word == "time":
                found.setdefault(estimate[name].source, []).append(word)
        yield f"  {stage}: " + "; ".join(f"{source} ({', '.join(words)})" for source, words in found.items())
    sources = " ".join(number.source for estimate in plan.estimates.values() for number in estimate.numbers.values())
    yield from (f"  {one['name']}: {one['measured']}" for one in machines() if one["name"] in sources)


def _totals(plan: Plan) -> Iterator[str]:
    cpu, gpu, walltime, *_ = (plan.left(name) for name in LEFT)
    spent = f"{text_of(cpu, hours)} of cores, {text_of(gpu, hours)} of GPUs, {text_of(walltime, duration)} of walltime"
    yield f"left: {spent}"
    yield f"left to write: {text_of(plan.left('bytes_written'), size)} of {size(plan.disk.free_bytes)} that are free"
    for offer, costs in plan.costs.items():
        rent = [
            f"{n} x {kind} for {stage} ({text_of(time, hours)})" for stage, (n, kind, time) in costs.machines.items()
        ]
        yield from [f"machines, {offer}: {', '.join(rent)}"] if rent else []
        monthly = ", ".join(f"{what} {_cost(price)}" for what, price in costs.monthly.items())
        yield f"each month, {offer}: {monthly}"
        kept = f"{_cost(costs.total)} {plan.prices.currency} with {plan.prices.months_kept:g} months"
        yield f"cost of what is left, {offer}: {kept}"
    yield from (f"warning: {warn.stage}: {warn.what}; {warn.fix}" for warn in plan.warnings)
