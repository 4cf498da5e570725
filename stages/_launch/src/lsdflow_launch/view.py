"""The commands `view` and `export` of `lsdflow`: they run the command of the viewers' environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.no_experiment import require_viewable
from lsdflow_launch.commands import run_command, stage_command
from lsdflow_launch.options import Debug, Folder

VIEWER = "lsdflow-view"
# The options, including --help, belong to that command and are defined only there.
_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}
Words = Annotated[
    list[str] | None, typer.Argument(help="ome DIR OUT or precomputed DIR OUT, with options; --help lists them")
]


def add_view_verbs(app: typer.Typer) -> None:
    """Register `view` and `export`."""

    @app.command()
    def view(
        folder: Folder,
        at: Annotated[str | None, typer.Option(help='position to open: z,y,x in nm, or "48, 80, 80 vox"')] = None,
        port: Annotated[
            int, typer.Option(min=0, max=65535, help="port of the local web server; 0 = any free port")
        ] = 0,
        host: Annotated[
            str, typer.Option(help="name or address of a network interface; default: this machine only")
        ] = "",
        browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open a browser")] = True,
        napari: Annotated[bool, typer.Option("--napari", help="use napari instead of neuroglancer")] = False,
        export: Annotated[
            Path | None, typer.Option(help="show the coarser levels of this `lsdflow export ome` folder")
        ] = None,
        debug: Debug = False,
    ) -> None:
        """Show an experiment, what `lsdflow export` wrote, or a training snapshot, in neuroglancer; Ctrl-C ends it."""
        with exit_codes(debug):
            require_viewable(folder)  # report a wrong folder even if the viewers are not installed
            named = {"--at": at, "--host": host, "--export": export}
            values = [f"--port={port}", *(f"{option}={value}" for option, value in named.items() if value)]
            flags = {"--no-browser": not browser, "--napari": napari, "--debug": debug}
            options = [*values, *(flag for flag, wanted in flags.items() if wanted)]
            code = run_command([str(viewer_command()), "show", str(folder), *options])
        raise typer.Exit(code)

    @app.command(context_settings=_PASSED_ON)
    def export(words: Words = None) -> None:
        """Export volumes, meshes and skeletons: `export ome DIR OUT`, `export precomputed DIR OUT`."""
        arguments = words or ["--help"]
        with exit_codes(debug="--debug" in arguments):
            code = run_command([str(viewer_command()), "export", *arguments])
        raise typer.Exit(code)


def viewer_command() -> Path:
    """Return the command of the viewers. MissingInput, with a fix, if their environment is not installed."""
    try:
        return stage_command(VIEWER)
    except MissingInput as error:
        error.what = "the viewers are not installed"
        error.fix = "make setup-view, once, in the clone of lsdflow: they have an environment of their own"
        raise
