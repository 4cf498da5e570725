"""The command `prepare`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, add_report_verb, stage_app
from lsdflow_prepare.config import PrepareConfig

STAGE = StageCommand(name="prepare", config=PrepareConfig, task="lsdflow_prepare.task")
app = stage_app(STAGE)
add_report_verb(
    app, STAGE, "look", "Show size, voxel size, grey values and labelled part of the volumes; used by `lsdflow init`."
)
add_report_verb(
    app, STAGE, "describe", "Show what prepare will make, from the metadata of the sources; used by `lsdflow validate`."
)


def main() -> None:
    """Entry point of the console script."""
    app()
