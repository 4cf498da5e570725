"""The command `evaluate`: the verbs of every stage, and `report`, which writes the page and counts nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lsdflow_command.app import (
    DebugOption,
    ExperimentOption,
    JsonOption,
    SetOption,
    StageCommand,
    opened_experiment,
    stage_app,
)
from lsdflow_evaluate.config import EvaluateConfig

SUMMARY = "Score the segmentation against ground truth, and write the report of the experiment."
app = stage_app(StageCommand("evaluate", EvaluateConfig, SUMMARY))
Refresh = Annotated[int | None, typer.Option(min=1, help="browsers reload the page after this many seconds")]


@app.command(help="Write the report from the present results, at any time; computes no new scores.")
def report(
    experiment: ExperimentOption,
    override: SetOption = None,
    refresh: Refresh = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Exit code 0, or that of the first artefact that could not be read: the page is written all the same."""
    with opened_experiment(experiment, override, debug, json_) as opened:
        # zarr and jinja2 take longer to start than all the other verbs
        from lsdflow_evaluate.evaluation import write_report

        errors = write_report(opened, refresh)
        if errors:
            raise errors[0]
        if json_:
            typer.echo(json.dumps({"report": str(opened.layout.report / "index.html")}))


def main() -> None:
    """Entry point of the console script."""
    app()
