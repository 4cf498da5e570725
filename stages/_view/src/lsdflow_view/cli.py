"""The command `lsdflow-view`: `show` opens a viewer on an experiment; `export` writes the field's formats."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from lsdflow_command.loudness import start_logging
from lsdflow_command.verbs import Verbs
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_view.export.cli import app as export_app

app = Verbs(name="lsdflow-view")


def main() -> None:
    """Entry point."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lsdflow-view {version('lsdflow-view')} (contract {CONTRACT_VERSION})")
        raise typer.Exit


@app.callback(help="See an experiment, and export its volumes. Example: lsdflow-view show DIR")
def _front(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="version")
    ] = False,
) -> None:
    del show_version
    start_logging()


app.add_typer(export_app)
