"""The command `lsdflow-view`: `show` opens a viewer on an experiment; `export` writes the field's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.cli import Verbs, version_line
from lsdflow_command.console import start_logging
from lsdflow_contract.experiment import load_experiment
from lsdflow_view.export.cli import app as export_app
from lsdflow_view.show import Listening, show_experiment

app = Verbs(name="lsdflow-view")


def main() -> None:
    """Entry point."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line("lsdflow-view", "lsdflow-view"))
        raise typer.Exit


@app.callback(help="View an experiment, and export its volumes. Example: lsdflow-view show DIR")
def _front(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    del show_version
    start_logging()


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="folder of the experiment")],
    at: Annotated[str | None, typer.Option(help='position to open: z,y,x in nm, or "48, 80, 80 vox"')] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the local web server; 0 = any free port")] = 0,
    host: Annotated[str, typer.Option(help="name or address of a network interface")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open a browser")] = True,
    napari: Annotated[bool, typer.Option("--napari", help="use napari instead of neuroglancer")] = False,
    export: Annotated[Path | None, typer.Option(help="show the coarser levels of this `export ome` folder")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="also print tracebacks")] = False,
) -> None:
    """Show all volumes and the segmentation at every threshold in neuroglancer or napari; Ctrl-C ends it."""
    with exit_codes(debug):
        listening = None if napari else Listening(host, port, browser)
        show_experiment(load_experiment(folder), listening, at, export)


app.add_typer(export_app)
