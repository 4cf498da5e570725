"""`lsdflow sweep`: the commands plan, prepare, run, status and merge for a grid of experiments; shell completion.

For completion only file names and sweep.json are read, without checks: on an error the shell gets no suggestions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
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
from lsdflow_launch.options import Debug, Engine, Images, Json, Network, named_folder
from lsdflow_launch.output import next_line, print_answer, stdout_for_json
from lsdflow_launch.sweep.check import require_fresh_base, require_valid
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import PLAN_NAME, PlannedRun, SweepFolder, open_sweep, planned, write_folders
from lsdflow_launch.sweep.grid import groups_of, runs_where
from lsdflow_launch.sweep.merge import Merged, estimate, grid_runs, merged, runs_of_part
from lsdflow_launch.sweep.run import BACKENDS, SweepRunner, caller_at, exit_code_of, prepare_volumes
from lsdflow_launch.sweep.table import summary, write_merged

INTO = "folder for the runs (default: beside SWEEP.toml, with the same name)"
KEPT = "folders of one sweep: one of each server that had its own"
WHERE = "axis=value: only these runs (repeat for more)"


def sweep_folders(incomplete: str) -> list[str]:
    """Return the folders of prepared sweeps; after them other folders, which may contain one."""
    folders = [name.removesuffix("/") for name in experiment_folders(incomplete)]
    sweeps = [name for name in folders if Path(name, PLAN_NAME).is_file()]
    return sweeps + [f"{name}/" for name in folders if name not in sweeps]


def sweep_files(incomplete: str) -> list[str]:
    """Return the TOML files, each of which may be a sweep; after them the folders, which may contain one."""
    begin = "" if incomplete.endswith("/") else Path(incomplete).name
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        found = sorted(p for p in folder.glob("*.toml") if p.name.startswith(begin) and p.is_file())
    except OSError:
        found = []
    return [*map(str, found), *(f"{name.removesuffix('/')}/" for name in experiment_folders(incomplete))]


def axis_values(context: typer.Context, incomplete: str) -> list[str]:
    """Return `axis=` for every axis of the sweep named on the command line, and `axis=value` for its values."""
    axes = _axes(named_folder(context))
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{axis}=" for axis in axes if axis.startswith(name)]
    return [f"{name}={value}" for value in axes.get(name, ()) if value.startswith(begin)]


def _axes(root: Path) -> dict[str, list[str]]:
    """Return the labels of each axis; {} if the folder has no sweep."""
    try:
        axes = json.loads((root / PLAN_NAME).read_text(encoding="utf-8"))["axes"]
        return {str(name): [str(label) for label in labels] for name, labels in axes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


app = Verbs(name="sweep", help="Run a grid of experiments, on any number of servers.")
File = Annotated[Path, typer.Argument(help="the file SWEEP.toml", autocompletion=sweep_files)]
Folder = Annotated[Path, typer.Argument(help="folder of a prepared sweep", autocompletion=sweep_folders)]
Into = Annotated[Path | None, typer.Argument(help=INTO, autocompletion=sweep_folders)]
Parts = Annotated[int, typer.Option(min=1, help="number of servers that share the work")]


@app.command()
def plan(file: File, folder: Into = None, parts: Parts = 1, as_json: Json = False, debug: Debug = False) -> None:
    """Show the runs, their folders, what they share and the estimated hours; writes nothing."""
    with exit_codes(debug, as_json):
        sweep = load_sweep(file)
        require_valid(sweep, ask_stage)
        root = folder or sweep.default_folder
        planned_sweep = SweepFolder(root.resolve(), planned(sweep, root))
        facts = estimate(planned_sweep, parts)
        if as_json:
            typer.echo(json.dumps({**facts, "runs": [run.model_dump() for run in planned_sweep.plan.runs]}))
            return
        for run in planned_sweep.plan.runs:
            typer.echo(f"{run.number:>5}  {planned_sweep.run_folder(run)}")
        groups = len(groups_of(sweep.runs, sweep.split_by))
        typer.echo(
            f"{len(planned_sweep.plan.runs)} runs; {groups} groups to split by {', '.join(sweep.split_by) or 'nothing'}"
        )
        _show_estimate(facts, parts)


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
    where: Annotated[list[str] | None, typer.Option(help=WHERE, autocompletion=axis_values)] = None,
    array: Annotated[bool, typer.Option("--array", help="run the part of this task of a SLURM array")] = False,
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
        chosen = chosen_runs(sweep, part, where or [], array=array)
        caller = caller_at(backend, sweep, ContainerOptions(engine, images, network))
        with stdout_for_json(as_json):
            outcomes = SweepRunner(sweep, caller).run_all(chosen)
        counts = {word: list(outcomes.values()).count(word) for word in dict.fromkeys(outcomes.values())}
        text = ", ".join(f"{n} {word}" for word, n in counts.items()) or "none"
        print_answer({"runs": len(chosen), "came": outcomes}, f"{len(chosen)} runs: {text}", as_json)
    raise typer.Exit(exit_code_of(outcomes))


@app.command()
def status(
    folders: Annotated[list[Path], typer.Argument(help="folders of the sweep", autocompletion=sweep_folders)],
    parts: Annotated[int | None, typer.Option(min=1, help="also count for each of this many parts")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Count finished runs in total, by server and by part; show failed runs and why."""
    with exit_codes(debug, as_json):
        opened = [open_sweep(folder) for folder in folders]
        found = merged(opened)
        servers, failures = _by_server(found), _failures(found)
        of_parts = {f"{n}/{parts}": _of_part(opened[0], found, n, parts or 1) for n in range(1, (parts or 0) + 1)}
        if as_json:
            facts = {"runs": len(found.rows), **found.counts, "servers": servers, "failures": failures}
            typer.echo(json.dumps({**facts, "parts": of_parts}))
            return
        typer.echo(summary(found))
        for kind, table in (("server", servers), ("part", of_parts)):
            for name, counts in table.items():
                typer.echo(f"  {kind} {name}: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
        for name, why in failures.items():
            typer.echo(f"  failed: {name}: {why}")


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help=KEPT, autocompletion=sweep_folders)],
    out: Annotated[Path | None, typer.Option(help="folder to write to (default: merged/ in the first folder)")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write one table of all runs, one of their means, and a plot; the exit code is 79 while runs are missing."""
    with exit_codes(debug, as_json):
        found = merged([open_sweep(folder) for folder in folders])
        written = write_merged(found, out or folders[0] / "merged", f"Sweep {folders[0].resolve().name}")
        paths = [str(path) for path in written]
        facts = {"runs": len(found.rows), **found.counts, "wrote": paths}
        print_answer(facts, f"{summary(found)}\nwrote {', '.join(paths)}", as_json)
        complete = found.counts["done"] == len(found.rows)
    raise typer.Exit(0 if complete else BlocksFailed.exit_code)


def chosen_runs(sweep: SweepFolder, part: str | None, where: list[str], *, array: bool) -> list[PlannedRun]:
    """Return the runs that the options select. Raises UsageError (2) for an unknown part, axis or value."""
    if part and array:
        raise UsageError("--part and --array name the part twice", fix="leave one out")
    number, parts = _array_part(os.environ) if array else _part(part) if part else (1, 1)
    chosen = {run.name for run in runs_where(grid_runs(sweep), where)}
    return [run for run in runs_of_part(sweep, number, parts) if run.name in chosen]


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found or int(found[2]) < 1:
        raise UsageError("a part is NUMBER/PARTS", where="--part", wanted="2/4: the second of four", found=text)
    return int(found[1]), int(found[2])


def _array_part(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the task's place in its array and the array's size. UsageError (2) outside an array or if it has gaps."""
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN")
    values = {name: environment.get(name, "") for name in names}
    if not all(value.isdigit() for value in values.values()):
        raise UsageError("this is no task of a SLURM array", where="--array", found=str(values), fix="use --part 2/4")
    here, count, first = (int(value) for value in values.values())
    step = max(1, int(environment.get("SLURM_ARRAY_TASK_STEP") or 1))
    place, rest = divmod(here - first, step)
    if rest or not 0 <= place < count:
        fix = "submit --array=1-N, or run a part of it again with --part"
        raise UsageError("the array has gaps: which part this task is, is not known", found=str(values), fix=fix)
    return place + 1, count


def _by_server(found: Merged) -> dict[str, dict[str, int]]:
    servers: dict[str, dict[str, int]] = {}
    for row in found.rows:
        host = row.worker.host if row.worker else row.result.host if row.result else ""
        if host:
            counts = servers.setdefault(host, {})
            counts[row.status] = counts.get(row.status, 0) + 1
    return servers


def _of_part(sweep: SweepFolder, found: Merged, number: int, parts: int) -> dict[str, int]:
    names = {run.name for run in runs_of_part(sweep, number, parts)}
    states = [row.status for row in found.rows if row.run.name in names]
    return {"runs": len(states), **{state: states.count(state) for state in dict.fromkeys(states)}}


def _failures(found: Merged) -> dict[str, str]:
    failed = [(row.run.name, row.result) for row in found.rows if row.status == "failed"]
    return {name: f"{r.failed_stage}: {r.error.get('what', r.exit_code)}" for name, r in failed if r is not None}


def _show_estimate(facts: dict[str, Any], parts: int) -> None:
    stages = ", ".join(f"{stage} {count}" for stage, count in facts["times_made"].items())
    typer.echo(f"to be made: {stages or 'nothing'}")
    if facts["seconds_once"]:
        slowest = f", {facts['hours_left_of_slowest_part']} of the slowest of {parts} servers" if parts > 1 else ""
        typer.echo(f"hours left: {facts['hours_left']}{slowest} (as finished runs took)")
    if facts["not_known"]:
        typer.echo(f"time not known yet, no run has finished them: {', '.join(facts['not_known'])}")
    if facts["bytes_left"] is not None:
        typer.echo(f"disk: about {facts['bytes_left'] / 1e9:.3g} GB more")
