"""Arguments and options that several commands of `lsdflow` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import SETTING
from lsdflow_command.completion import experiment_folders, settings, stages


def named_folder(context: typer.Context) -> Path:
    """Return the folder on a command line that a shell completes, or the working folder.

    An option without a value ends the parsing; the words before it are then in the unparsed arguments.
    """
    return Path(context.params.get("folder") or next(iter(context.args), "."))


def settings_of_folder(context: typer.Context, incomplete: str) -> list[str]:
    """Return keys and words for `--set`, for the experiment on the command line."""
    context.params["folder"] = named_folder(context)
    return settings(context, incomplete)


Folder = Annotated[Path, typer.Argument(help="folder of the experiment", autocompletion=experiment_folders)]
Set = Annotated[list[str] | None, typer.Option("--set", help=SETTING, autocompletion=settings_of_folder)]
First = Annotated[str, typer.Option("--from", help="first stage to run", autocompletion=stages)]
Last = Annotated[str, typer.Option("--to", help="last stage to run", autocompletion=stages)]
Engine = Annotated[str | None, typer.Option(help="container: docker, podman, or singularity (also for apptainer)")]
Images = Annotated[Path | None, typer.Option(help="container: folder with the SIF images, for singularity")]
Network = Annotated[str | None, typer.Option(help="container: network in which MongoDB is reached (default: host)")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Debug = Annotated[bool, typer.Option("--debug", help="also print tracebacks")]
