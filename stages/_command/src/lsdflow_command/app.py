"""stage_app: one typer application per stage, with the same subcommands, options and exit codes.

run        run the stage, or resume an interrupted run
validate   report all problems; writes nothing
plan       report what a run would do
status     report what is done
verify     re-read the results of a finished stage and check them
repair     recompute what is missing or damaged, and nothing else (prepare, and stages that process blocks)
schema     print the JSON schema of the stage's table
worker     process blocks for a coordinator in another job (stages that process blocks)

For other commands of lsdflow:
measure    compute a block, or some steps of a training, in a temporary folder, and report time and memory
doctor     report the devices of the network library on this machine, and the store of the experiment
drop-rows  remove the done marks and the rows of results from the store, which `lsdflow clean` removes
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.cli import Verbs, version_line
from lsdflow_command.code_cache import use_own_code_cache
from lsdflow_command.completion import experiment_folders, settings
from lsdflow_command.console import error_text, form_log_lines, start_logging
from lsdflow_command.interruption import end_if_asked, interrupt_on_signals, unwrapped_interrupts
from lsdflow_command.monitoring import monitored
from lsdflow_command.processes import end_with_launcher
from lsdflow_command.runfolder import run_folder
from lsdflow_command.stage import Stage, load_stage
from lsdflow_contract.chain_link import SUBMISSION_VARIABLE
from lsdflow_contract.errors import ConfigError, Interrupted, StageError, UsageError, unexpected
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest, record_for_later_jobs, require_results_of_chain
from lsdflow_contract.model import StrictModel

LOG = logging.getLogger("lsdflow")

EXPERIMENT, SETTING = (
    "experiment.toml, or its folder",
    "table.key=value: replaces this setting of experiment.toml (repeat for more)",
)
ExperimentOption = Annotated[
    Path, typer.Option("--experiment", "-e", help=EXPERIMENT, autocompletion=experiment_folders)
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help=SETTING, autocompletion=settings)]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
DebugOption = Annotated[bool, typer.Option("--debug", help="also print tracebacks")]
DescriptionsOption = Annotated[
    Path | None,
    typer.Option(hidden=True, help="plan from what earlier stages described in this folder, and describe the results"),
]
IntoOption = Annotated[Path, typer.Option(help="temporary folder, which must not exist yet; delete it afterwards")]
MaybeExperiment = Annotated[Path | None, typer.Option("--experiment", "-e", help=EXPERIMENT)]
KeyArgument = Annotated[list[str], typer.Argument(help="keys of results, or their beginnings")]


@dataclass(frozen=True)
class StageCommand:
    """The command of a stage: its name, the model of its table, and what it does, in a sentence for --help.

    has_blocks: whether it processes blocks; without, --help does not list `repair` and `worker`, which refuse with the
    command to use. The stage itself is imported at its first use.
    """

    name: str
    config: type[StrictModel]
    summary: str = ""
    has_blocks: bool = True

    def load(self) -> Stage:
        """The stage, loaded by its entry point."""
        return load_stage(self.name)


def stage_app(stage: StageCommand) -> Verbs:
    """The application of a stage."""
    app = Verbs(name=stage.name)
    app.callback(help=f"{stage.summary} Example: {stage.name} run --experiment DIR".strip())(_version_callback(stage))
    _add_run(app, stage)
    _add_repair_and_worker(app, stage)
    _add_validate_and_plan(app, stage)
    add_report_verb(app, "status", "Show what is done so far.", lambda experiment: stage.load().status(experiment))
    add_report_verb(
        app,
        "verify",
        "Re-read the results of the finished stage and check them; the exit code is 0 only if all are correct.",
        lambda experiment: _verify(stage, experiment),
    )
    _add_schema(app, stage)
    _add_verbs_for_other_commands(app, stage)
    return app


def _verify(stage: StageCommand, experiment: Experiment) -> dict[str, Any]:
    """Verify the stage; in a job of a submission, its result becomes the one that later jobs read."""
    facts = stage.load().verify(experiment)
    if submission := os.environ.get(SUBMISSION_VARIABLE):
        record_for_later_jobs(experiment.layout, submission, [stage.name])
    return facts


@contextmanager
def exit_codes(debug: bool, as_json: bool = False) -> Iterator[None]:
    """Convert errors to messages and exit codes, with a traceback before them if --debug is set."""
    try:
        yield
    except StageError as error:
        _show_traceback(debug)
        raise _reported(error, as_json) from error
    except typer.Exit:
        raise
    except (KeyboardInterrupt, typer.Abort) as error:  # Abort: no answer to a question
        typer.echo("interrupted; run the same command again to resume", err=True)
        raise typer.Exit(Interrupted.exit_code) from error
    except Exception as error:
        _show_traceback(debug)
        raise _reported(unexpected(error, fix="run with --debug and report it"), as_json) from error


def _reported(error: StageError, as_json: bool) -> typer.Exit:
    """Report an error (as_json: as JSON on stdout); returns the exception that ends the command with its code."""
    text = json.dumps(error.as_dict()) if as_json else error_text(error.message(), sys.stderr)
    typer.echo(text, err=not as_json)
    return typer.Exit(error.exit_code)


def _show_traceback(debug: bool) -> None:
    if debug:
        typer.echo(traceback.format_exc(), err=True)


@contextmanager
def _naming_file(experiment: Experiment) -> Iterator[None]:
    """Add the path of the experiment file to errors of its values."""
    try:
        yield
    except ConfigError as error:
        _name_file(error, experiment)
        raise


def _name_file(error: StageError, experiment: Experiment) -> None:
    path = str(experiment.path)
    if isinstance(error, ConfigError) and path not in error.where:
        error.where = f"{path}: {error.where}" if error.where else path


def _show_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else "\n".join(f"{k}: {v}" for k, v in facts.items()))


def _version_callback(stage: StageCommand) -> Callable[..., None]:
    def print_version(wanted: bool) -> None:
        """Print the version of the command and of the contract, and end."""
        if wanted:
            typer.echo(version_line(stage.name, f"lsdflow-{stage.name}"))
            raise typer.Exit

    # A default, not an Annotated type: annotations are text, in which typer cannot resolve the local print_version.
    option = typer.Option(False, "--version", callback=print_version, is_eager=True, help="print the version")

    def callback(show: bool = option) -> None:
        """Prepare the code cache and the log before the verb runs."""
        del show
        end_with_launcher()
        use_own_code_cache()
        start_logging()

    return callback


@contextmanager
def opened_experiment(
    path: Path,
    overrides: list[str] | None,
    debug: bool,
    as_json: bool = False,
    *,
    descriptions: Path | None = None,
    interruptible: bool = False,
) -> Iterator[Experiment]:
    """The experiment of a command; errors, and signals if `interruptible`, end it with their exit code."""
    with exit_codes(debug, as_json), interrupt_on_signals() if interruptible else nullcontext():
        experiment = replace(load_experiment(path, overrides or []), descriptions=descriptions)
        with _naming_file(experiment):
            yield experiment


@contextmanager
def _begun(stage: StageCommand, experiment: Experiment) -> Iterator[Stage]:
    """The stage for a command that computes, with a run folder, metrics, and interruption by signals."""
    config = experiment.table(stage.name, stage.config)
    LOG.debug("%s: %s", experiment.path, config.model_dump_json())
    with ExitStack() as run:
        run.enter_context(run_folder(stage.name, experiment, config.model_dump(mode="json")))
        run.enter_context(monitored(stage.name, experiment))
        run.enter_context(unwrapped_interrupts())
        require_results_of_chain(experiment.layout)
        loaded = stage.load()
        end_if_asked()
        yield loaded


def _add_run(app: typer.Typer, stage: StageCommand) -> None:
    @app.command()
    def run(
        experiment: ExperimentOption,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Run the stage, or resume an interrupted run."""
        with opened_experiment(experiment, override, debug, json_, interruptible=True) as opened:
            form_log_lines(opened.compute.log_format, stage.name)
            with _begun(stage, opened) as begun:
                begun.run(opened)
            if json_:
                typer.echo(json.dumps(_results(opened, stage.name)))


def _add_repair_and_worker(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(hidden=not stage.has_blocks)
    def repair(
        experiment: ExperimentOption, override: SetOption = None, json_: JsonOption = False, debug: DebugOption = False
    ) -> None:
        """Re-read all results and recompute only those that are missing or damaged."""
        with opened_experiment(experiment, override, debug, json_, interruptible=True) as opened:
            form_log_lines(opened.compute.log_format, stage.name)
            _require_blocks(stage)
            with _begun(stage, opened) as begun:
                _show_facts(begun.repair(opened), json_)

    @app.command(hidden=not stage.has_blocks)
    def worker(experiment: ExperimentOption, override: SetOption = None, debug: DebugOption = False) -> None:
        """Process blocks for a coordinator in another job (one that runs with --set compute.runner=cluster)."""
        with opened_experiment(experiment, override, debug, interruptible=True) as opened:
            form_log_lines(opened.compute.log_format, stage.name)
            _require_blocks(stage)
            with monitored(stage.name, opened, is_worker=True):
                stage.load().join(opened)


def _require_blocks(stage: StageCommand) -> None:
    if not stage.has_blocks:
        raise UsageError(f"{stage.name} does not work on blocks", fix=f"{stage.name} run")


def _results(experiment: Experiment, name: str) -> dict[str, Any]:
    """The results of a finished stage from its manifest; {} if there is none (one process of many)."""
    if not experiment.layout.manifest(name).exists():
        return {}
    manifest = read_manifest(experiment.layout, name)
    return {"stage": name, "identity": manifest.identity, "outputs": manifest.outputs, "facts": manifest.facts}


def _add_validate_and_plan(app: typer.Typer, stage: StageCommand) -> None:
    @app.command()
    def validate(
        experiment: ExperimentOption,
        override: SetOption = None,
        descriptions: DescriptionsOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Report all configuration and input problems; writes nothing."""
        with (
            opened_experiment(experiment, override, debug, json_, descriptions=descriptions) as opened,
            _described(stage, opened),
        ):
            opened.table(stage.name, stage.config)
            found = stage.load().validate(opened)
        for problem in found:
            _name_file(problem, opened)
        _show_problems(stage.name, found, json_)

    @app.command()
    def plan(
        experiment: ExperimentOption,
        override: SetOption = None,
        descriptions: DescriptionsOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Show what a run would do: blocks, bytes, time."""
        with opened_experiment(experiment, override, debug, json_, descriptions=descriptions) as opened:
            with _described(stage, opened):
                facts = stage.load().plan(opened)
            _show_facts(facts, json_)


@contextmanager
def _described(stage: StageCommand, experiment: Experiment) -> Iterator[None]:
    """After the `with` block, describe the results if later stages are to be planned from them.

    If the settings are wrong, the description uses the defaults, so that later stages can be checked.
    """
    try:
        yield
    finally:
        if experiment.descriptions is not None:
            defaults = {name: table for name, table in experiment.tables.items() if name != stage.name}
            for candidate in (experiment, replace(experiment, tables=defaults)):
                with suppress(StageError):
                    stage.load().describe(candidate)
                    break


def _show_problems(name: str, problems: list[StageError], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([p.as_dict() for p in problems]))
    elif not problems:
        typer.echo(f"{name}: no problems found")
    for problem in () if as_json else problems:
        typer.echo(error_text(problem.message(), sys.stderr), err=True)
    if problems:
        raise typer.Exit(problems[0].exit_code)


def add_report_verb(app: typer.Typer, verb: str, text: str, facts: Callable[[Experiment], dict[str, Any]]) -> None:
    """Add a subcommand that reports facts of an experiment."""

    @app.command(name=verb, help=text)
    def report(
        experiment: ExperimentOption, override: SetOption = None, json_: JsonOption = False, debug: DebugOption = False
    ) -> None:
        """Print the facts; `text` is its help."""
        with opened_experiment(experiment, override, debug, json_) as opened:
            _show_facts(facts(opened), json_)


def _add_schema(app: typer.Typer, stage: StageCommand) -> None:
    @app.command()
    def schema() -> None:
        """Print the JSON schema of the stage's table in experiment.toml."""
        typer.echo(json.dumps(stage.config.model_json_schema()))


def _add_verbs_for_other_commands(app: typer.Typer, stage: StageCommand) -> None:
    @app.command()
    def measure(
        experiment: ExperimentOption,
        into: IntoOption,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Run one block, or some training steps, in a temporary folder and report time and memory."""
        with opened_experiment(experiment, override, debug, json_, interruptible=True) as opened:
            _show_facts(stage.load().measure(opened, into.absolute()), json_)

    @app.command()
    def doctor(
        experiment: MaybeExperiment = None,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Report the devices that this command finds; with an experiment, also its store."""
        with exit_codes(debug, json_):
            loaded = None if experiment is None else load_experiment(experiment, override or [])
            _show_facts(stage.load().doctor(loaded), json_)

    @app.command(name="drop-rows", hidden=True)
    def drop_rows(
        key: KeyArgument,
        experiment: ExperimentOption,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        """Remove done marks and rows of results from the store."""
        with opened_experiment(experiment, override, debug, json_) as opened:
            _show_facts(stage.load().drop_rows(opened, key), json_)
