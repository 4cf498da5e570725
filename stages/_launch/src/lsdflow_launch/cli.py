"""The typer application `lsdflow`."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.cli import Verbs, version_line
from lsdflow_command.completion import experiment_folders
from lsdflow_command.console import start_logging
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.boxes import add_box_verbs
from lsdflow_launch.checkpoint_selection.selection import add_selection_verb
from lsdflow_launch.images.compose_env import write_compose_env
from lsdflow_launch.images.pull import add_pull_verb
from lsdflow_launch.init.cli import add_start_verbs
from lsdflow_launch.integrity import add_integrity_verbs
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import next_line, plain_console, print_answer
from lsdflow_launch.planning.cli import add_plan_verb
from lsdflow_launch.preflight import Scope, show_problems, volumes_of
from lsdflow_launch.report import add_report_verbs
from lsdflow_launch.results import add_result_verbs
from lsdflow_launch.run import FIRST_STEPS, add_run_verb
from lsdflow_launch.scaling import add_scaling_verb
from lsdflow_launch.slurm.submit import add_cluster_verbs
from lsdflow_launch.status import experiment_status, show_status
from lsdflow_launch.sweep.cli import app as sweep_app
from lsdflow_launch.sync import add_sync_verb
from lsdflow_launch.view import add_view_verbs

DOCTOR_FOLDER = "an experiment, or the folder where you want to create one"
# The order in `--help`: what a new user needs comes first.
VERBS = (
    *("demo", "init", "validate", "plan", "run", "status", "report", "view", "export", "verify", "repair", "doctor"),
    *("results", "use", "clean", "cut", "add-labels"),
    *("submit", "scale", "cancel", "select-checkpoint", "scaling", "schema", "sync", "pull", "compose-env", "cite"),
)
app = Verbs(name="lsdflow", epilog="\n\n".join(FIRST_STEPS))


def main() -> None:
    """Run the application."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line("lsdflow", "lsdflow"))
        raise typer.Exit


@app.callback(help="Neuron segmentation with Local Shape Descriptors. Example: lsdflow demo demo && lsdflow run demo")
def _front(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    del show
    start_logging()


@app.command()
def validate(folder: Folder, override: Set = None, as_json: Json = False, debug: Debug = False) -> None:
    """Report what the volumes contain, and all configuration and input problems of all stages; writes nothing."""
    with exit_codes(debug, as_json):
        experiment = load_experiment(folder, override or [])
        show_problems(experiment, as_json, scope=Scope(on_cluster=True), volumes=partial(volumes_of, experiment))


@app.command()
def status(folder: Folder, override: Set = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show what is done, what failed and why."""
    with exit_codes(debug, as_json):
        states = experiment_status(load_experiment(folder, override or []))
        if as_json:
            typer.echo(json.dumps(states))
        else:
            show_status(states, plain_console())


@app.command()
def doctor(
    folder: Annotated[Path, typer.Argument(help=DOCTOR_FOLDER, autocompletion=experiment_folders)] = Path(),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check machine, GPU, containers, folder, store and scheduler; the exit code is 1 if one needs a fix."""
    from lsdflow_launch.doctor import findings

    with exit_codes(debug, as_json):
        lines = findings(folder)
        typer.echo(json.dumps([asdict(line) for line in lines]) if as_json else "\n".join(x.line() for x in lines))
    raise typer.Exit(1 if any(line.state == "FAIL" for line in lines) else 0)


@app.command()
def demo(
    folder: Folder,
    seed: Annotated[int, typer.Option(help="random seed of the volume")] = 0,
    train: Annotated[bool, typer.Option("--train", help="train a network, instead of using the one supplied")] = False,
    mode: Annotated[str, typer.Option(help="with --train: acrlsd, mtlsd or affinities")] = "mtlsd",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a synthetic EM volume with ground truth, and an experiment that segments it."""
    # scipy and h5py take longer to import than all the rest of the command
    from lsdflow_launch.init.demo import CHECKPOINT, make_demo

    with exit_codes(debug, as_json):
        if mode != "mtlsd" and not train:
            fix = f"lsdflow demo {folder} --train --mode {mode}"
            raise UsageError(
                "the supplied network has another mode", where="--mode", wanted="mtlsd", found=mode, fix=fix
            )
        layout = make_demo(folder, seed=seed, mode=mode, checkpoint=None if train else CHECKPOINT)
        step = f"lsdflow run {folder}"
        facts = {"wrote": [str(layout.experiment_toml)], "next": step}
        print_answer(facts, f"wrote {layout.experiment_toml}\n{next_line(step)}", as_json)


@app.command(name="compose-env")
def compose_env(folder: Folder, override: Set = None, as_json: Json = False, debug: Debug = False) -> None:
    """Check the pinned images and write DIR/compose.env (with MongoDB passwords, if used) for docker compose."""
    with exit_codes(debug, as_json):
        written = write_compose_env(load_experiment(folder, override or []))
        facts = {"wrote": [str(written.path)], "next": written.command()}
        print_answer(facts, f"wrote {written.path}\n{next_line(written.command())}", as_json)


app.add_typer(sweep_app)
add_cluster_verbs(app)
add_pull_verb(app)
add_sync_verb(app)
add_selection_verb(app)
add_result_verbs(app)
add_box_verbs(app)
add_integrity_verbs(app)
add_report_verbs(app)
add_view_verbs(app)
add_plan_verb(app)
add_scaling_verb(app)
add_run_verb(app)
add_start_verbs(app)
_ORDER = {verb: position for position, verb in enumerate(VERBS)}
app.registered_commands.sort(key=lambda c: _ORDER.get(str(c.name or getattr(c.callback, "__name__", "")), len(VERBS)))
