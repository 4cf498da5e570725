"""The command `plan`, and its tables for the terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.errors import StageError, StorageFailure, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment, nearest
from lsdflow_contract.geometry import Vox3
from lsdflow_launch.chain import BLOCK_STAGES
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.options import Debug, Folder, Json, OldBackend, Set, chosen_backend
from lsdflow_launch.output import count, duration, hours, money, plain_console, size
from lsdflow_launch.planning.evidence import RECORDED_RUN, Quantity, origin_of_recorded_run, record_of
from lsdflow_launch.planning.plan import HOURS, Plan, PlanOptions, make_plan
from lsdflow_launch.planning.stored import Comparison, compare, store_plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LOG = logging.getLogger("lsdflow.plan")
EXPERIMENT = "experiment"
ON_SLURM = {"": None, "local": False, "slurm": True}
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("blocks", "blocks", count),
    ("a block", "seconds_per_block", duration),
    ("read", "bytes_read", size),
    ("written", "bytes_written", size),
    ("files", "files", count),
    ("RAM", "rss_per_worker_bytes", size),
    ("VRAM", "vram_per_worker_bytes", size),
    ("CPU", "cpu_hours", hours),
    ("GPU", "gpu_hours", hours),
    ("walltime", "walltime_s", duration),
)
# A terminal of 80 columns gets two tables: the amounts of data, and the resources.
WIDE, WORK_COLUMNS = 132, 5
HEADS = tuple(head for head, _, _ in COLUMNS)
LEFT, WORKERS = "left", "workers"
WORDS = {"walltime_s": ("walltime", duration), "seconds": ("work", duration), "files": ("files", count)}
WORDS |= {"rss_per_worker_bytes": ("RAM", size), "bytes_written": ("written", size)}


def add_plan_verb(app: typer.Typer) -> None:
    """Register `plan`."""

    @app.command()
    def plan(
        folder: Folder,
        measure: Annotated[
            bool,
            typer.Option(
                "--measure",
                help="measure time and memory of one block (or some training steps) of each stage that can run now",
            ),
        ] = False,
        like: Annotated[Path | None, typer.Option(help="finished experiment whose measured times are used")] = None,
        prices: Annotated[
            Path | None, typer.Option(help="file with prices (default: prices.toml of the experiment)")
        ] = None,
        volume_shape: Annotated[
            str, typer.Option(help="plan for a target of this shape instead: voxels z,y,x, such as 10000,10000,10000")
        ] = "",
        workers: Annotated[int, typer.Option(min=0, help="workers of every stage; 0: as configured")] = 0,
        backend: Annotated[
            str, typer.Option(help="local or slurm (default: slurm if experiment.toml has a cluster table)")
        ] = "",
        on: OldBackend = None,
        compared: Annotated[
            bool, typer.Option("--compare", help="compare the last plan with what was measured")
        ] = False,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Estimate disk, files, memory, hours and cost of a run from measured blocks; writes DIR/plan.json."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, [*(override or []), *_worker_settings(folder, workers)])
            backend = chosen_backend(backend, on)
            if backend not in ON_SLURM:
                fix = nearest(backend, list(ON_SLURM))
                raise UsageError(f"unknown backend {backend!r}", wanted="local or slurm", fix=fix)
            if compared:
                _compare(experiment, as_json)
                return
            options = PlanOptions(measure, like, prices, ON_SLURM[backend], _shape_of(volume_shape))
            estimated = make_plan(experiment, options, choose_ask(experiment))
            _show(experiment, estimated, as_json, store=options.volume_shape is None)
            certain = [warn for warn in estimated.warnings if warn.certain]
        if certain:
            raise typer.Exit(StorageFailure.exit_code)


def _shape_of(text: str) -> Vox3 | None:
    """Return the voxels of "z,y,x"; None for an empty text. Raises UsageError (2) for anything else."""
    if not text:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UsageError(
            "not a shape", where="--volume-shape", wanted="voxels z,y,x, such as 10000,10000,10000", found=text
        )
    z, y, x = map(int, parts)
    return z, y, x


def _worker_settings(folder: Path, count: int) -> list[str]:
    """Return the settings that give every stage this many workers, here and on a cluster."""
    if not count:
        return []
    stages = BLOCK_STAGES if load_experiment(folder).uses_cluster else ()
    return [
        f"compute.workers={count}",
        "compute.runner=daisy",
        *(f"cluster.{stage}.workers={count}" for stage in stages),
    ]


def _show(experiment: Experiment, plan: Plan, as_json: bool, store: bool) -> None:
    if as_json:
        facts: dict[str, Any] = plan.as_dict()
        stages = facts.pop("stages")
        typer.echo(json.dumps({**{s: {**f, "estimate": stages[s]} for s, f in plan.facts.items()}, EXPERIMENT: facts}))
    else:
        show_plan(plan, plain_console())
    if not store:
        return
    try:
        path = store_plan(experiment, plan)
    except StageError as error:
        LOG.warning("the plan is not kept: %s", error.message())
        return
    if not as_json:
        typer.echo(f"wrote {path}; after the run: lsdflow plan {experiment.path.parent} --compare")


def _compare(experiment: Experiment, as_json: bool) -> None:
    facts = plans_of(experiment, choose_ask(experiment))
    found = compare(experiment, {stage: record_of(experiment, stage, answer) for stage, answer in facts.items()})
    if as_json:
        comparisons: dict[str, Any] = {}
        for line in found:
            comparisons.setdefault(line.stage, {})[line.name] = line.as_dict()
        typer.echo(json.dumps(comparisons))
        return
    show_comparison(found, plain_console())


def text_of(quantity: Quantity, text: Callable[[float], str]) -> str:
    """Return a number as text, with '>' before a lower bound. The lines below the table name the sources."""
    if quantity.value is None or (quantity.value == 0 and quantity.at_least):
        return "not known"
    return f"{'> ' if quantity.at_least else ''}{text(quantity.value)}"


def show_plan(plan: Plan, console: Console) -> None:
    """Print the table of stages, the sources of its numbers, what is left in total, warnings and cost."""
    if console.width >= WIDE:
        console.print(_stages(plan, (LEFT, *HEADS, WORKERS)))
    else:
        console.print(_stages(plan, (LEFT, *HEADS[:WORK_COLUMNS])))
        console.print(_stages(plan, (*HEADS[WORK_COLUMNS:], WORKERS)))
    for line in (*_sources(plan), *_totals(plan), *_warnings(plan)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stages(plan: Plan, heads: Sequence[str]) -> Table:
    table = _new_table(("stage", *heads))
    for stage, estimate in plan.estimates.items():
        job = plan.workers[stage].workers
        cells = {LEFT: f"{100 * estimate.share_left:.0f} %", WORKERS: f"{job.count} x {job.cores} on {job.partition}"}
        cells |= {h: text_of(estimate[name], text) for h, name, text in COLUMNS if name in estimate.numbers}
        table.add_row(stage, *(cells.get(head, "") for head in heads))
    return table


def show_comparison(found: Sequence[Comparison], console: Console) -> None:
    """Print predicted and actual numbers, one line each."""
    if not found:
        console.print("no stage has finished yet: there is nothing to compare")
        return
    table = _new_table(("stage", "what", "predicted", "actual", "actual / predicted"))
    predicted = [stage for stage in dict.fromkeys(x.stage for x in found) if _has_prediction(stage, found)]
    for line in (line for line in found if line.stage in predicted):
        word, text = WORDS[line.name]
        cells = ["?" if value is None else text(value) for value in (line.predicted, line.actual)]
        table.add_row(line.stage, word, *cells, "" if line.ratio is None else f"{line.ratio:.2f}")
    console.print(table)
    without = [stage for stage in dict.fromkeys(line.stage for line in found) if stage not in predicted]
    if without:
        console.print(f"no prediction: {', '.join(without)} (planned when it had finished, or not measured)")


def _has_prediction(stage: str, found: Sequence[Comparison]) -> bool:
    return any(line.predicted is not None for line in found if line.stage == stage)


def _new_table(heads: Sequence[str]) -> Table:
    # Loading rich takes time that --json does not need.
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _sources(plan: Plan) -> Iterator[str]:
    yield "where from:"
    for stage, estimate in plan.estimates.items():
        yield f"  {stage}: {estimate['walltime_s'].source or estimate['seconds'].source}"
        other = estimate["rss_per_worker_bytes"]
        if other.value is not None:
            yield f"    RAM: {other.source}"
        if estimate["bytes_written"].value is not None:
            yield f"    written: {estimate['bytes_written'].source}"
    if any(
        RECORDED_RUN in number.source for estimate in plan.estimates.values() for number in estimate.numbers.values()
    ):
        yield f"  {RECORDED_RUN}: {origin_of_recorded_run()}"


def _totals(plan: Plan) -> Iterator[str]:
    for partition, numbers in plan.by_partition().items():
        cpu, gpu = (text_of(numbers[name], hours) for name in HOURS)
        walltime = text_of(numbers["walltime_s"], duration)
        yield f"left on {partition}: {cpu} of cores, {gpu} of GPUs, {walltime} of walltime"
    yield f"left to write: {text_of(plan.left('bytes_written'), size)} of {size(plan.disk.free_bytes)} that are free"
    for offer, cost in plan.costs.items():
        words = "{:.2f}".format if cost.at_least else money
        yield f"cost of what is left, {offer}: {text_of(cost, words)} {plan.currency}".rstrip()


def _warnings(plan: Plan) -> Iterator[str]:
    for warn in plan.warnings:
        yield f"warning: {warn.stage}: {warn.what}; {warn.fix}"
