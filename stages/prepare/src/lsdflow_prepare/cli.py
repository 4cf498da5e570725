"""The command `prepare`: the subcommands of every stage, and two for `lsdflow init`."""

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
    add_report_verb,
    opened_experiment,
    stage_app,
)
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import storage_errors
from lsdflow_prepare.config import PrepareConfig

LOOK = "Show size, voxel size, grey values and labelled part of the volumes; used by `lsdflow init`."


def _look(experiment: Experiment) -> dict[str, Any]:
    from lsdflow_prepare.stage import look

    return look(experiment)


SampleShape = Annotated[tuple[int, int, int], typer.Option("--shape", help="its shape, z y x, in voxels")]
SUMMARY = "Convert volumes of any format of the field to training and target volumes, and check them."
app = stage_app(StageCommand("prepare", PrepareConfig, SUMMARY))
add_report_verb(app, "look", LOOK, _look)


@app.command("sample")
def sample(
    experiment: ExperimentOption,
    out: Annotated[Path, typer.Option(help="the file to write, for example sample.npy")],
    shape: SampleShape = (128, 128, 128),
    override: SetOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the middle of the target as `run` would convert it, uint8 (z, y, x) .npy; used by `lsdflow init`."""
    with opened_experiment(experiment, override, debug, json_) as opened:
        import numpy as np

        from lsdflow_prepare.look import sample_of_target

        values = sample_of_target(opened.table("prepare", PrepareConfig).target, opened.resolve, shape)
        with storage_errors(out):
            np.save(out, values)
        typer.echo(json.dumps({"shape_vox": values.shape}) if json_ else f"wrote {out}: uint8 {values.shape}")


def main() -> None:
    """Entry point of the console script."""
    app()
