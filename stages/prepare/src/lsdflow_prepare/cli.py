"""The command `prepare`: the subcommands of every stage, and one for `lsdflow init`."""

from __future__ import annotations

from typing import Any

from lsdflow_command.app import StageCommand, add_report_verb, stage_app
from lsdflow_contract.experiment import Experiment
from lsdflow_prepare.config import PrepareConfig

LOOK = "Show size, voxel size, grey values and labelled part of the volumes; used by `lsdflow init`."


def _look(experiment: Experiment) -> dict[str, Any]:
    from lsdflow_prepare.stage import look

    return look(experiment)


SUMMARY = "Convert volumes of any format of the field to training and target volumes, and check them."
app = stage_app(StageCommand("prepare", PrepareConfig, SUMMARY))
add_report_verb(app, "look", LOOK, _look)


def main() -> None:
    """Entry point of the console script."""
    app()
