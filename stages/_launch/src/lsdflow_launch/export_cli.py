"""The command `export` of `lsdflow`: it passes its arguments to the command of the viewers' environment."""

from __future__ import annotations

from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_launch.commands import run_command
from lsdflow_launch.view_cli import viewer_command

# The options, including --help, belong to that command and are defined only there.
_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}
Words = Annotated[
    list[str] | None, typer.Argument(help="ome DIR OUT or precomputed DIR OUT, with options; --help lists them")
]


def add_export_verb(app: typer.Typer) -> None:
    """Register `export`."""

    @app.command(context_settings=_PASSED_ON)
    def export(words: Words = None) -> None:
        """Export volumes, meshes and skeletons: `export ome DIR OUT`, `export precomputed DIR OUT`."""
        told = words or ["--help"]
        with exit_codes(debug="--debug" in told):
            code = run_command([str(viewer_command()), "export", *told])
        raise typer.Exit(code)
