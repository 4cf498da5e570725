"""`lsdflow sweep`: the commands plan, prepare, run, status and merge for a grid of experiments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.cli import Verbs
from lsdflow_command.completion import experiment_folders, one_of
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.errors import BlocksFailed, UsageError
from lsdflow_launch.commands import ask_stage, run_stage
from lsdflow_launch.images.container import ContainerOptions
from lsdflow_launch.options import Debug, Engine, Images, Json, Network
from lsdflow_launch.output import next_line, print_answer, size, stdout_for_json
from lsdflow_launch.planning.plan import make_plan
from lsdflow_launch.sweep.check import require_fresh_base, require_valid
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, open_sweep, planned, write_folders
from lsdflow_launch.sweep.grid import Run, part_of, runs_where
from lsdflow_launch.sweep.merge import Row, estimate, merged
from lsdflow_launch.sweep.run import BACKENDS, SweepRunner, caller_at, exit_code_of, prepare_volumes
from lsdflow_launch.sweep.table import summary, write_merged

INTO = "folder for the runs (default: beside SWEEP.toml, with the same name)"
KEPT = "folders of one sweep: one of each server that had its own"
WHERE = "axis=value: only these runs (repeat for more)"

app = Verbs(name="sweep", help="Run a grid of experiments, on any number of servers.")
File = Annotated[Path, typer.Argument(help="the file SWEEP.toml")]
Folder = Annotated[Path, typer.Argument(help="folder of a prepared sweep", autocompletion=experiment_folders)]
Folders = Annotated[list[Path], typer.Argument(help=KEPT, autocompletion=experiment_folders)]
Into = Annotated[Path | None, typer.Argument(help=INTO)]


@app.command()
def plan(
    file: File,
    folder: Into = None,
    parts: Annotated[int, typer.Option(min=1, help="number of servers that share the work")] = 1,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the runs, their folders, what they share and the estimated hours; writes nothing."""
    with exit_codes(debug, as_json):
        sweep = load_sweep(file)
        require_valid(sweep, ask_stage)
        root = folder or sweep.default_folder
        found = SweepFolder(root.resolve(), planned(sweep, root))
        facts = estimate(found, parts, make_plan(sweep.base, ask_stage).estimates)
        lines = [f"{run.number:>5}  {found.run_folder(run)}" for run in found.plan.runs]
        text = "\n".join([*lines, f"{len(lines)} runs", *_estimate_lines(facts, parts)])
        print_answer({**facts, "runs": [run.model_dump() for run in found.plan.runs]}, text, as_json)


@app.command()
def prepare(file: File, folder: Into = None, as_json: Json = False, debug: Debug = False) -> None:
    """Create the folder of every run and prepare the shared volumes; trains and segments nothing."""
    with exit_codes(debug, as_json), interrupt_on_signals():
        sweep = load_sweep(file)
        require_valid(sweep, ask_stage)
        require_fresh_base(sweep, ask_stage)
        prepared = write_folders(sweep, folder or sweep.default_folder)
        with stdout_for_json(as_json):
            code = prepare_volumes(prepared, run_stage)
        step = f"lsdflow sweep run {prepared.root}"
        facts = {"exit_code": code, "runs": len(prepared.plan.runs), "folder": str(prepared.root), "next": step}
        print_answer(facts, f"wrote {len(prepared.plan.runs)} runs to {prepared.root}\n{next_line(step)}", as_json)
    raise typer.Exit(code)


@app.command()
def run(
    folder: Folder,
    part: Annotated[str | None, typer.Option(help="run only a part: 2/4 is the second of four")] = None,
    where: Annotated[list[str] | None, typer.Option(help=WHERE)] = None,
    backend: Annotated[str, typer.Option(help="where: local or container", autocompletion=one_of(BACKENDS))] = "local",
    engine: Engine = None,
    images: Images = None,
    network: Network = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Do all runs that are not finished; resumes interrupted ones, skips those that another server is running."""
    with exit_codes(debug, as_json), interrupt_on_signals():
        sweep = open_sweep(folder)
        sweep.require_base()
        chosen = chosen_runs(sweep, part, where or [])
        caller = caller_at(backend, sweep, ContainerOptions(engine, images, network))
        with stdout_for_json(as_json):
            outcomes = SweepRunner(sweep, caller).run_all(chosen)
        text = _counts(list(outcomes.values())) or "none"
        print_answer({"runs": len(chosen), "came": outcomes}, f"{len(chosen)} runs: {text}", as_json)
    raise typer.Exit(exit_code_of(outcomes))


@app.command()
def status(
    folders: Folders,
    parts: Annotated[int, typer.Option(min=0, help="also count for each of this many parts")] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Count finished runs in total, by server and by part; show failed runs and why."""
    with exit_codes(debug, as_json):
        opened = [open_sweep(folder) for folder in folders]
        found = merged(opened)
        hosts = dict.fromkeys(row.host for row in found.rows if row.host)
        servers = {host: [row.status for row in found.rows if row.host == host] for host in hosts}
        of_parts = {f"{n}/{parts}": _of_part(opened[0], found.rows, n, parts) for n in range(1, parts + 1)}
        failures = {r.run.name: f"{r.failed_stage}: {r.error or r.exit_code}" for r in found.rows if r.failed_stage}
        lines = [summary(found)]
        lines += [f"  server {name}: {_counts(states)}" for name, states in servers.items()]
        lines += [f"  part {name}: {len(states)} runs, {_counts(states)}" for name, states in of_parts.items()]
        lines += [f"  failed: {name}: {why}" for name, why in failures.items()]
        counted = {name: {"runs": len(states), **_counted(states)} for name, states in of_parts.items()}
        facts = {"runs": len(found.rows), **found.counts, "failures": failures, "parts": counted}
        facts["servers"] = {name: _counted(states) for name, states in servers.items()}
        print_answer(facts, "\n".join(lines), as_json)


@app.command()
def merge(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="folder to write to (default: merged/ in the first folder)")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write one table of all runs and one of their means; the exit code is 79 while runs are missing."""
    with exit_codes(debug, as_json):
        found = merged([open_sweep(folder) for folder in folders])
        written = write_merged(found, out or folders[0] / "merged", f"Sweep {folders[0].resolve().name}")
        paths = [str(path) for path in written]
        facts = {"runs": len(found.rows), **found.counts, "wrote": paths}
        print_answer(facts, f"{summary(found)}\nwrote {', '.join(paths)}", as_json)
        complete = found.counts["done"] == len(found.rows)
    raise typer.Exit(0 if complete else BlocksFailed.exit_code)


def chosen_runs(sweep: SweepFolder, part: str | None, where: Sequence[str]) -> list[Run]:
    """Return the runs that the options select. Raises UsageError (2) for an unknown part, axis or value."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", (part or "1/1").strip())
    if not numbers:
        raise UsageError("a part is NUMBER/PARTS", where="--part", wanted="2/4: the second of four", found=part)
    runs = part_of(sweep.plan.runs, sweep.plan.split_by, int(numbers[1]), int(numbers[2]))
    return runs_where(runs, sweep.plan.axes, where)


def _of_part(sweep: SweepFolder, rows: Sequence[Row], number: int, parts: int) -> list[str]:
    names = {run.name for run in part_of(sweep.plan.runs, sweep.plan.split_by, number, parts)}
    return [row.status for row in rows if row.run.name in names]


def _counted(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}


def _counts(words: Sequence[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in _counted(words).items())


def _estimate_lines(facts: dict[str, Any], parts: int) -> list[str]:
    stages = ", ".join(f"{stage} {count}" for stage, count in facts["times_made"].items())
    lines = [f"to be made: {stages or 'nothing'}"]
    if facts["seconds_once"]:
        slowest = f", {facts['hours_left_of_slowest_part']} of the slowest of {parts} servers" if parts > 1 else ""
        lines.append(
            f"hours left: {facts['hours_left']}{slowest} (as finished runs took, else as lsdflow plan says of the base)"
        )
    if facts["not_known"]:
        lines.append(f"time not known: {', '.join(facts['not_known'])}")
    if facts["bytes_left"] is not None:
        lines.append(f"disk: about {size(facts['bytes_left'])} more")
    if facts["gpu_bytes"]:
        lines.append(f"memory of a GPU: {size(facts['gpu_bytes'])}, with the settings of the base")
    return lines
