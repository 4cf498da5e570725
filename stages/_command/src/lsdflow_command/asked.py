"""Verbs of a stage that `lsdflow plan --measure`, `lsdflow doctor` and `lsdflow clean` call.

measure     compute a block, or some steps of a training, in a temporary folder, and report time and memory
doctor      report what this command finds on this machine: devices of its network library, store of the experiment
drop-rows   remove the done marks and the rows of results that are dropped from the store
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import (
    DebugOption,
    ExperimentOption,
    JsonOption,
    SetOption,
    StageCommand,
    exit_codes,
    naming_file,
)
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.experiment import load_experiment

Into = Annotated[Path, typer.Option(help="temporary folder, which must not exist yet; delete it afterwards")]
Maybe = Annotated[Path | None, typer.Option("--experiment", "-e", help="experiment.toml, or its folder")]


def add_asked_verbs(app: typer.Typer, stage: StageCommand) -> None:
    """Register measure, doctor and drop-rows."""

    @app.command(help="Run one block, or some training steps, in a temporary folder and report time and memory.")
    def measure(
        experiment: ExperimentOption,
        into: Into,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        with exit_codes(debug, as_json=json_), interrupt_on_signals():
            loaded = load_experiment(experiment, override or [])
            with naming_file(loaded):
                _show(stage.load().measure(loaded, into.absolute()), json_)

    @app.command(help="Report the devices that this command finds; with an experiment, also its store.")
    def doctor(
        experiment: Maybe = None, override: SetOption = None, json_: JsonOption = False, debug: DebugOption = False
    ) -> None:
        with exit_codes(debug, as_json=json_):
            loaded = load_experiment(experiment, override or []) if experiment is not None else None
            _show(stage.load().doctor(loaded), json_)

    @app.command(name="drop-rows", hidden=True, help="Remove done marks and rows of results from the store.")
    def drop_rows(
        key: Annotated[list[str], typer.Argument(help="keys of results, or their beginnings")],
        experiment: ExperimentOption,
        override: SetOption = None,
        json_: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        with exit_codes(debug, as_json=json_):
            loaded = load_experiment(experiment, override or [])
            with naming_file(loaded):
                _show(stage.load().drop_rows(loaded, key), json_)


def _show(facts: Mapping[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else "\n".join(f"{k}: {v}" for k, v in facts.items()))
