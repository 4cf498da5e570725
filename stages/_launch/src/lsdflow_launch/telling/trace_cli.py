"""The command `trace` of `lsdflow`."""

from __future__ import annotations

import json

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.options import Debug, Folder, Json
from lsdflow_launch.telling.trace import write_traces


def add_trace_verb(app: typer.Typer) -> None:
    """Register `trace`."""

    @app.command()
    def trace(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """Write what every run and block took to DIR/trace.tsv and DIR/runs/STAGE/trace.tsv (Nextflow's columns)."""
        with exit_codes(debug, as_json):
            written = write_traces(load_experiment(folder).layout)
            told = "\n".join(f"{folder / path}: {rows} rows" for path, rows in written.items())
            typer.echo(json.dumps(written) if as_json else told)
