"""The command `evaluate`: the verbs of every stage; `report` writes the page and counts nothing; `cut-boxes` and
`take-boxes` are for `lsdflow cut` and `lsdflow add-labels`.
"""

from __future__ import annotations

import json
from pathlib import Path
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
To = Annotated[Path, typer.Option(help="folder to write into")]
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


@app.command("cut-boxes", help="Write boxes for people to correct; used by `lsdflow cut`.")
def cut(
    experiment: ExperimentOption,
    at: Annotated[str, typer.Option(help='worst:1..5, z,y,x in nm, or "z, y, x vox"')],
    size: Annotated[tuple[int, int, int], typer.Option(help="of a box, z y x, in voxels")],
    to: To,
    override: SetOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print where the boxes are."""
    with opened_experiment(experiment, override, debug, json_) as opened:
        from lsdflow_evaluate.boxes import cut_boxes

        typer.echo(json.dumps({"boxes": cut_boxes(opened.layout, at, size, to)}))


@app.command(
    "take-boxes", help="Check corrected boxes and write them as training volumes; used by `lsdflow add-labels`."
)
def take(
    experiment: ExperimentOption,
    boxes: Annotated[list[Path], typer.Argument(help="folders of boxes, or the corrected labels in them")],
    to: To,
    override: SetOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the names of the volumes, and how much of each is labelled."""
    with opened_experiment(experiment, override, debug, json_) as opened:
        from lsdflow_evaluate.boxes import take_boxes

        typer.echo(json.dumps({"volumes": take_boxes(opened.layout, boxes, to)}))


def main() -> None:
    """Entry point of the console script."""
    app()
