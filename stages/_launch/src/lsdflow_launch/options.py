"""Arguments and options that several verbs of `lsdflow` have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import SETTING
from lsdflow_command.completion import experiment_folders, settings, stages

Folder = Annotated[Path, typer.Argument(help="folder of the experiment", autocompletion=experiment_folders)]
Set = Annotated[list[str] | None, typer.Option("--set", help=SETTING, autocompletion=settings)]
First = Annotated[str, typer.Option("--from", help="first stage", autocompletion=stages)]
Last = Annotated[str, typer.Option("--to", help="last stage", autocompletion=stages)]
Replace = Annotated[bool, typer.Option("--replace", help="replace results made with other parameters")]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks")]
