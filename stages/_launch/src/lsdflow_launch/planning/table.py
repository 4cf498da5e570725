"""Tables of a plan and of its comparison, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from lsdflow_launch.output import count, duration, hours, money, size
from lsdflow_launch.planning.evidence import RECORDED_RUN, Quantity, origin_of_recorded_run
from lsdflow_launch.planning.plan import HOURS, Plan
from lsdflow_launch.planning.stored import Comparison

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
    table = _table(("stage", *heads))
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
    table = _table(("stage", "what", "predicted", "actual", "actual / predicted"))
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


def _table(heads: Sequence[str]) -> Table:
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
