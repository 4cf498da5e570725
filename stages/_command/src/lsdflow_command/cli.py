"""The typer application of a command: all subcommands have --quiet and --verbose, and --version has one form.

With --json, a wrong command line is reported as JSON, like every other error.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from lsdflow_command.console import error_text, set_loudness, stdout_outlasts_its_reader
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import ConfigError, UsageError
from lsdflow_contract.software import source_revision

Verb = TypeVar("Verb", bound=Callable[..., Any])
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print only errors and the result")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="print more details")]


class JsonSpeakingGroup(TyperGroup):
    """A group of commands; a wrong command line with --json is reported as one JSON object, exit code 2."""

    def main(  # type: ignore[override]  # the rest of its arguments is passed on by name
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **named: Any
    ) -> Any:
        """As in typer; ConfigError (78) without a working folder."""
        words = list(sys.argv[1:] if args is None else args)
        if (error := _no_working_folder()) is not None:
            as_json = "--json" in words
            text = json.dumps(error.as_dict()) if as_json else error_text(error.message(), sys.stderr)
            typer.echo(text, err=not as_json)
            sys.exit(error.exit_code)
        if not standalone_mode or "--json" not in words:
            return super().main(words, standalone_mode=standalone_mode, **named)
        try:
            code = super().main(words, standalone_mode=False, **named)
        except TyperException as wrong:
            code = _report_as_json(wrong)
        sys.exit(code if isinstance(code, int) else 0)


def _no_working_folder() -> ConfigError | None:
    """The error if the working folder was deleted, or lies on a file system that is gone."""
    try:
        Path.cwd()
    except OSError as error:
        return ConfigError(
            "the working folder does not exist any more",
            where=os.environ.get("PWD", ""),
            found=error.strerror,
            fix="change to a folder that exists: cd",
        )
    return None


def _report_as_json(wrong: TyperException) -> int:
    """Report a wrong command line as JSON on stdout; returns its exit code."""
    context, format_message = getattr(wrong, "ctx", None), getattr(wrong, "format_message", wrong.__str__)
    command = context.command_path if context else ""
    error = UsageError(format_message(), where=command, fix=f"{command} --help" if command else "")
    typer.echo(json.dumps(error.as_dict()))
    return error.exit_code


class Verbs(typer.Typer):
    """A typer application that adds the common options, so that registered functions need not define them."""

    def __init__(self, **settings: Any) -> None:
        usual = {"cls": JsonSpeakingGroup, "no_args_is_help": True, "pretty_exceptions_enable": False}
        super().__init__(**{**usual, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Verb], Verb]:
        """As in typer."""
        register = super().command(name, **settings)

        def add(verb: Verb) -> Verb:
            """Register the verb with the common options; return it unchanged."""
            register(_with_verbosity(verb))
            return verb

        return add


def _with_verbosity(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The command with --quiet and --verbose added."""

    @functools.wraps(verb)
    def with_logging(*, quiet: bool, verbose: bool, **values: Any) -> Any:
        """Set the loudness of the log, then run the verb; exit code 2 if both options are given."""
        if quiet and verbose:
            error = UsageError("--quiet and --verbose are opposites", fix="leave one out")
            typer.echo(f"error: {error.message()}", err=True)
            raise typer.Exit(error.exit_code)
        if quiet or verbose:
            set_loudness("quiet" if quiet else "verbose")
        with stdout_outlasts_its_reader():
            return verb(**values)

    signature = inspect.signature(verb, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]
    parameters = [*signature.parameters.values(), *more]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    with_logging.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    with_logging.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return with_logging


def version_line(command: str, package: str) -> str:
    """`predict 0.1.0 (contract 1.6.1), revision 0123456789ab`; "-dirty" if the code of a clone was changed."""
    commit, *dirty = source_revision().split("-")
    revision = "-".join([commit[:12], *dirty])
    return f"{command} {version(package)} (contract {CONTRACT_VERSION}){f', revision {revision}' if revision else ''}"
