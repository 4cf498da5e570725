"""Arguments and options that several verbs of `lsdflow` have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import SETTING
from lsdflow_command.completion import experiment_folders, settings, stages


def named_folder(context: typer.Context) -> Path:
    """The folder of a command line that a shell asks to complete, or the working folder.

    An option that has no value yet ends the parsing: the words before it are then arguments that nobody has taken.
    """
    return Path(context.params.get("folder") or next(iter(context.args), "."))


def settings_of_folder(context: typer.Context, incomplete: str) -> list[str]:
    """Keys and words of `--set`, of the experiment that the verb's argument names."""
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
