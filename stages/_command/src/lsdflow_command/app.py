"""stage_app: one typer application per stage, the same verbs, options and exit codes everywhere.

run       run the stage, or resume an interrupted run
validate  report all problems; writes nothing
plan      what a run would do
status    what is done
verify    re-read the results of a finished stage and check them
repair    recompute what is missing or damaged, and nothing else (prepare, and stages that process blocks)
schema    JSON schema of the stage's table
worker    process blocks for a coordinator in another job (stages that process blocks)
measure, doctor   called by lsdflow plan and lsdflow doctor (asked.py)
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.cli import Verbs, version_line
from lsdflow_command.code_cache import use_own_code_cache
from lsdflow_command.completion import experiment_folders, settings
from lsdflow_command.console import error_text, form_log_lines, start_logging
from lsdflow_command.interruption import end_if_asked, interrupt_on_signals, unwrapped_interrupts
from lsdflow_command.runfolder import run_folder
from lsdflow_command.stage import Stage, load_stage
from lsdflow_command.watching.monitoring import monitored
from lsdflow_contract.errors import ConfigError, InternalError, Interrupted, StageError, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.model import StrictModel

LOG = logging.getLogger("lsdflow")

PLAN = "Show what a run would do: blocks, bytes, time."
STATUS = "Show what is done so far."
VERIFY = "Re-read the results of the finished stage and check them; the exit code is 0 only if all are correct."
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


def _warn_of_replace(given: bool) -> None:
    if given:
        LOG.warning("--replace does nothing: each result has a folder of its own, and none is replaced")


OldReplaceOption = Annotated[bool, typer.Option("--replace", hidden=True, callback=_warn_of_replace)]
DescriptionsOption = Annotated[
    Path | None,
    typer.Option(hidden=True, help="plan from what earlier stages described in this folder, and describe the results"),
]


@dataclass(frozen=True)
class StageCommand:
    """The command of a stage: its name and the model of its table. The stage itself is imported when it is used."""

    name: str
    config: type[StrictModel]

    def load(self) -> Stage:
        """The stage, by its entry point."""
        return load_stage(self.name)


def stage_app(stage: StageCommand) -> Verbs:
    """The application of a stage."""
    app = Verbs(name=stage.name)
    app.callback(help=f"The stage {stage.name} of lsdflow. Example: {stage.name} run --experiment DIR")(
        _version_callback(stage)
    )
    _add_run(app, stage)
    _add_repair(app, stage)
    _add_validate(app, stage)
    _add_plan(app, stage)
    add_report_verb(app, "status", STATUS, lambda experiment: stage.load().status(experiment))
    add_report_verb(app, "verify", VERIFY, lambda experiment: stage.load().verify(experiment))
    _add_schema(app, stage)
    _add_worker(app, stage)
    from lsdflow_command.asked import add_asked_verbs  # it needs this module whole

    add_asked_verbs(app, stage)
    return app


@contextmanager
def exit_codes(debug: bool, as_json: bool = False) -> Iterator[None]:
    """Turn errors into messages and exit codes; a traceback comes before them, with --debug alone."""
    try:
        yield
    except StageError as error:
        _show_traceback(debug)
        raise _told(error, as_json) from error
    except typer.Exit:
        raise
    except (KeyboardInterrupt, typer.Abort) as error:  # Abort: no answer to a question
        typer.echo("interrupted; run the same command again to resume", err=True)
        raise typer.Exit(Interrupted.exit_code) from error
    except Exception as error:
        _show_traceback(debug)
        what = f"internal: {type(error).__name__}: {error}"
        raise _told(InternalError(what, hint="run with --debug and report it"), as_json) from error


def _told(error: StageError, as_json: bool) -> typer.Exit:
    """Report an error, with as_json on stdout as JSON; the exception that ends the command with its code."""
    text = json.dumps(error.as_dict()) if as_json else error_text(error.message(), sys.stderr)
    typer.echo(text, err=not as_json)
    return typer.Exit(error.exit_code)


def _show_traceback(debug: bool) -> None:
    if debug:
        typer.echo(traceback.format_exc(), err=True)


@contextmanager
def naming_file(experiment: Experiment) -> Iterator[None]:
    """Add the path of the experiment file to the error of one of its values."""
    try:
        yield
    except ConfigError as error:
        _name_file(error, experiment)
        raise


def _name_file(error: StageError, experiment: Experiment) -> None:
    path = str(experiment.path)
    if isinstance(error, ConfigError) and path not in error.where:
        error.where = f"{path}: {error.where}" if error.where else path


def _version_callback(stage: StageCommand) -> Callable[..., None]:
    def print_version(wanted: bool) -> None:
        if wanted:
            typer.echo(version_line(stage.name, f"lsdflow-{stage.name}"))
            raise typer.Exit

    # A default, not an Annotated type: typer cannot see the local print_version from a type that is text.
    option = typer.Option(False, "--version", callback=print_version, is_eager=True, help="print the version")

    def callback(show: bool = option) -> None:
        del show
        use_own_code_cache()
        start_logging()

    return callback


def _load(path: Path, overrides: list[str] | None) -> Experiment:
    return load_experiment(path, overrides or [])


def _begin(stage: StageCommand, path: Path, overrides: list[str] | None) -> Experiment:
    """The experiment of work that begins, which says in what form its log lines are."""
    loaded = _load(path, overrides)
    form_log_lines(loaded.compute.log_format, stage.name)
    return loaded


def _add_run(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(help="Run the stage, or resume an interrupted run.")
    def run(
        experiment: ExperimentOption,
        override: SetOption = None,
        replace: OldReplaceOption = False,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        del replace
        with exit_codes(debug, as_json=json_), interrupt_on_signals():
            loaded = _begin(stage, experiment, override)
            config = loaded.table(stage.name, stage.config)
            LOG.debug("%s: %s", loaded.path, config.model_dump_json())
            folder = run_folder(stage.name, loaded, config.model_dump(mode="json"))
            with naming_file(loaded), folder, monitored(stage.name, loaded), unwrapped_interrupts():
                made = stage.load()
                end_if_asked()
                made.run(loaded)
            if json_:
                typer.echo(json.dumps(_made(loaded, stage.name)))


def _made(experiment: Experiment, name: str) -> dict[str, Any]:
    """The results of a finished stage, from its manifest; {} if it has none (one process of many)."""
    if not experiment.layout.manifest(name).exists():
        return {}
    manifest = read_manifest(experiment.layout, name)
    return {"stage": name, "identity": manifest.identity, "outputs": manifest.outputs, "facts": manifest.facts}


def _add_repair(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(help="Re-read all results and recompute only those that are missing or damaged.")
    def repair(
        experiment: ExperimentOption, override: SetOption = None, json_: JsonOption = False, debug: DebugOption = False
    ) -> None:
        with exit_codes(debug, as_json=json_), interrupt_on_signals():
            loaded = _begin(stage, experiment, override)
            config = loaded.table(stage.name, stage.config)
            made = stage.load()
            if not made.repairable:
                raise UsageError(f"{stage.name} does not work on blocks", hint=f"{stage.name} run")
            folder = run_folder(stage.name, loaded, config.model_dump(mode="json"))
            with folder, monitored(stage.name, loaded), unwrapped_interrupts():
                _show_facts(made.repair(loaded), json_)


def _show_facts(facts: dict[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else "\n".join(f"{k}: {v}" for k, v in facts.items()))


def _add_validate(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(help="Report all configuration and input problems; writes nothing.")
    def validate(
        experiment: ExperimentOption,
        override: SetOption = None,
        descriptions: DescriptionsOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        with exit_codes(debug, as_json=json_):
            loaded = replaced(_load(experiment, override), descriptions=descriptions)
            with naming_file(loaded):
                try:
                    loaded.table(stage.name, stage.config)
                    found = stage.load().validate(loaded)
                finally:
                    if descriptions is not None:
                        _describe(stage, loaded)
            for problem in found:
                _name_file(problem, loaded)
        _show_problems(stage.name, found, json_)


def _describe(stage: StageCommand, loaded: Experiment) -> None:
    """Describe the results for the checks of later stages; where the settings are wrong, with the defaults."""
    without_settings = {name: table for name, table in loaded.tables.items() if name != stage.name}
    for candidate in (loaded, replaced(loaded, tables=without_settings)):
        with suppress(StageError):
            stage.load().describe(candidate)
            return


def _show_problems(name: str, problems: list[StageError], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([p.as_dict() for p in problems]))
    elif not problems:
        typer.echo(f"{name}: no problems found")
    for problem in () if as_json else problems:
        typer.echo(error_text(problem.message(), sys.stderr), err=True)
    if problems:
        raise typer.Exit(problems[0].exit_code)


def _add_plan(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(help=PLAN)
    def plan(
        experiment: ExperimentOption,
        override: SetOption = None,
        descriptions: DescriptionsOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        with exit_codes(debug, as_json=json_):
            loaded = replaced(_load(experiment, override), descriptions=descriptions)
            with naming_file(loaded):
                try:
                    facts = stage.load().plan(loaded)
                finally:
                    if descriptions is not None:
                        _describe(stage, loaded)
            _show_facts(facts, json_)


def add_report_verb(app: typer.Typer, verb: str, text: str, facts: Callable[[Experiment], dict[str, Any]]) -> None:
    """Give the application a verb that reports facts of an experiment."""

    @app.command(name=verb, help=text)
    def report(
        experiment: ExperimentOption, override: SetOption = None, json_: JsonOption = False, debug: DebugOption = False
    ) -> None:
        with exit_codes(debug, as_json=json_):
            loaded = _load(experiment, override)
            with naming_file(loaded):
                _show_facts(facts(loaded), json_)


def _add_schema(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(help="Print the JSON schema of the stage's table in experiment.toml.")
    def schema() -> None:
        typer.echo(json.dumps(stage.config.model_json_schema()))


def _add_worker(app: typer.Typer, stage: StageCommand) -> None:
    @app.command(
        help="Process blocks for a coordinator in another job (one that runs with --set compute.runner=cluster)."
    )
    def worker(experiment: ExperimentOption, override: SetOption = None, debug: DebugOption = False) -> None:
        with exit_codes(debug), interrupt_on_signals():
            loaded = _begin(stage, experiment, override)
            with naming_file(loaded), monitored(stage.name, loaded, is_worker=True):
                stage.load().join(loaded)
