"""The command `predict`: the verbs of every stage, and export-network."""

from __future__ import annotations

import json
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
    stage_app,
)
from lsdflow_contract.experiment import load_experiment
from lsdflow_predict.config import PredictConfig

SUMMARY = "Predict the affinities (and LSDs) of the target volume with trained networks."
app = stage_app(StageCommand("predict", PredictConfig, SUMMARY))
OutOption = Annotated[Path, typer.Option("--out", help="the file to write, for example network.pt")]


@app.command("export-network")
def export_network(
    experiment: ExperimentOption,
    out: OutOption,
    override: SetOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the networks that `predict` would use to one TorchScript file, for C++ programs (libtorch)."""
    with exit_codes(debug, as_json=json_):
        from lsdflow_predict import network_export  # torch takes seconds to load
        from lsdflow_predict.inputs import open_inputs

        loaded = load_experiment(experiment, override or [])
        with naming_file(loaded):
            inputs = open_inputs(loaded, loaded.table("predict", PredictConfig))
            facts = network_export.export_network(inputs.networks, out)
        typer.echo(json.dumps(facts) if json_ else f"wrote {out}: {_summary(facts)}")


def _summary(facts: dict[str, Any]) -> str:
    shape = facts["output_shape_vox"]
    outputs = ", ".join(f"{name} uint8 {[channels, *shape]}" for name, channels in facts["outputs"].items())
    return f"raw uint8 {facts['input_shape_vox']} -> {outputs}"


def main() -> None:
    """Entry point."""
    app()
