"""The command `predict`: the verbs of every stage, export-network, and those for the networks that come with it."""

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
    opened_experiment,
    stage_app,
)
from lsdflow_contract.errors import UsageError
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.shipped import copy_network, network_folder, predict_patch, shipped_networks

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
    with opened_experiment(experiment, override, debug, json_) as opened:
        from lsdflow_predict import network_export  # torch takes seconds to load
        from lsdflow_predict.stage import inputs_of

        inputs = inputs_of(opened, opened.table("predict", PredictConfig))
        facts = network_export.export_network(inputs.networks, out)
        typer.echo(json.dumps(facts) if json_ else f"wrote {out}: {_summary(facts)}")


@app.command("networks")
def networks(
    copy: Annotated[str | None, typer.Option(help="copy the network of this name")] = None,
    to: Annotated[Path | None, typer.Option(help="into this new folder")] = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the trained networks that come with predict, or copy one; used by `lsdflow init --network`."""
    with exit_codes(debug, as_json=json_):
        if (copy is None) != (to is None):
            raise UsageError("--copy and --to belong together", wanted="--copy NAME --to FOLDER")
        if copy is not None and to is not None:
            copy_network(copy, to)
        found = shipped_networks()
        lines = (f"{name}: {card['tissue']}" for name, card in found.items())
        typer.echo(json.dumps(found) if json_ else "\n".join(lines))


@app.command("patch")
def patch(
    network: Annotated[str, typer.Option(help="the name of a network that comes with predict, or its folder")],
    raw: Annotated[Path, typer.Option(help=".npy: a patch of raw, uint8 (z, y, x)")],
    out: Annotated[Path, typer.Option(help=".npy: its affinities, uint8 (c, z, y, x), smaller by the context")],
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the affinities of one patch of raw; used by `lsdflow init` to see whether a network fits."""
    with exit_codes(debug, as_json=json_):
        shape = predict_patch(network_folder(network), raw, out)
        typer.echo(json.dumps({"shape_vox": shape}) if json_ else f"wrote {out}")


def _summary(facts: dict[str, Any]) -> str:
    shape = facts["output_shape_vox"]
    outputs = ", ".join(f"{name} uint8 {[channels, *shape]}" for name, channels in facts["outputs"].items())
    return f"raw uint8 {facts['input_shape_vox']} -> {outputs}"


def main() -> None:
    """Entry point."""
    app()
