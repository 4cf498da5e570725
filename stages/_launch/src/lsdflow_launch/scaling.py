"""`lsdflow scaling`: how much faster more processes train, from a few steps of the training with each number of them.

The steps run in a folder DIR/.scaling-* that is removed afterwards, so no result changes. DIR/scaling.json stores the
table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.machine import available_cores
from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import storage_errors, write_json
from lsdflow_launch.chain import stage_arguments
from lsdflow_launch.commands import Ask, error_of
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import plain_console

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("lsdflow.scaling")
MIB_PER_GIB = 1024
STRATEGIES = ("ddp", "fsdp")


def add_scaling_verb(app: typer.Typer) -> None:
    """Register `scaling`."""

    @app.command()
    def scaling(
        folder: Folder,
        processes: Annotated[str, typer.Option(help="numbers of processes on this machine to compare")] = "1,2,4",
        strategy: Annotated[str, typer.Option(help="ddp, fsdp or ddp,fsdp (default: as configured)")] = "",
        steps: Annotated[int, typer.Option(min=5, max=50, help="steps of each, for at most a minute")] = 20,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Measure a few training steps with 1, 2, ... processes: speed, efficiency, memory; writes DIR/scaling.json."""
        with exit_codes(debug, as_json):
            numbers, strategies = _numbers(processes), _strategies(strategy)
            experiment = load_experiment(folder, override or [])
            found = measure_scaling(experiment, numbers, strategies, steps, choose_ask(experiment))
            write_json(experiment.layout.scaling, found)
            if as_json:
                typer.echo(json.dumps(found))
            else:
                show_scaling(found, plain_console())
                typer.echo(f"wrote {experiment.layout.scaling}")


def measure_scaling(
    experiment: Experiment, numbers: Sequence[int], strategies: Sequence[str], steps: int, ask: Ask
) -> dict[str, Any]:
    """Measure the first training of the experiment with each strategy and number of processes.

    Returns what DIR/scaling.json stores: the rows in this order, and the stage and machine. Raises the error of a
    training that cannot run.
    """
    stage = "train-lsd" if experiment.common.mode == "acrlsd" else "train-acrlsd"
    root, rows = experiment.layout.root, []
    with storage_errors(root), scratch_folder(root, "scaling") as folder:
        for strategy, number in ((strategy, number) for strategy in strategies for number in numbers):
            LOG.info("%s: %d steps with %d processes %s", stage, steps, number, strategy)
            given = [f"{stage}.max_iteration={steps}", *([f"{stage}.strategy={strategy}"] if strategy else [])]
            arguments = [word for word in stage_arguments("scaling", experiment) if word != "--json"]
            arguments += ["--into", str(folder / f"{strategy}{number}"), "--processes", str(number)]
            answer = ask(stage, [*arguments, *(word for one in given for word in ("--set", one))])
            if "exit_code" in answer:
                raise error_of(answer)
            rows.append({"strategy": strategy, "processes": number, **answer})
    shared = ("host", "device", "device_name")
    return {
        "stage": stage,
        "steps": steps,
        "cores": available_cores(),
        **{name: rows[0][name] for name in shared if name in rows[0]},
        "rows": [{k: v for k, v in row.items() if k not in shared} for row in with_efficiency(rows)],
    }


def with_efficiency(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row its samples per second and process, relative to the row of the fewest processes."""
    first = min(rows, key=lambda row: row["processes"])
    alone = first["samples_per_s"] / first["processes"]
    return [{**row, "efficiency": row["samples_per_s"] / row["processes"] / alone} for row in rows]


def show_scaling(found: dict[str, Any], console: Console) -> None:
    """Print the table, and what its numbers are."""
    from rich.table import Table  # loading rich takes time that --json does not need

    table = Table(box=None, pad_edge=False, header_style="bold")
    memory = "device_peak_mib" if "device_peak_mib" in found["rows"][0] else "peak_rss_mib"
    for head in ("processes", "samples/s", "efficiency", "all-reduce", "waiting for it", "waiting for data"):
        table.add_column(head, justify="right")
    table.add_column("peak memory of each process", justify="left")
    for row in found["rows"]:
        shares = (_percent(row[name]) for name in ("all_reduce_share", "all_reduce_wait_share", "data_wait_share"))
        peaks = ", ".join(f"{mib / MIB_PER_GIB:.2f}" for mib in row[memory]) + " GiB"
        head = f"{row['processes']} {row['strategy']}".strip()
        table.add_row(head, f"{row['samples_per_s']:.3g}", _percent(row["efficiency"]), *shares, peaks)
    console.print(table)
    for line in _notes(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _notes(found: dict[str, Any]) -> Iterator[str]:
    where = found.get("device_name", found["device"])
    yield f"{found['stage']} on {found['host']}, {where}, {found['cores']} cores, {found['steps']} steps each"
    if found["device"] == "cpu" and max(row["processes"] for row in found["rows"]) > 1:
        yield "the processes share these cores, so the efficiency is not that of machines or GPUs of their own"
    if any(row["all_reduce_share"] is None for row in found["rows"]):
        yield "the exchange of fsdp is not measured"


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.0f} %"


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        wanted = "numbers of processes, such as 1,2,4"
        raise UsageError("not numbers of processes", where="--processes", wanted=wanted, found=text)
    return [int(part) for part in parts]


def _strategies(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if text and not set(parts) <= set(STRATEGIES):
        raise UsageError("unknown strategy", where="--strategy", wanted=" or ".join(STRATEGIES), found=text)
    return parts
