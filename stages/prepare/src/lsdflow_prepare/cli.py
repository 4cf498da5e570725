"""The command `prepare`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_prepare.config import PrepareConfig

app = stage_app(StageCommand(name="prepare", config=PrepareConfig, task="lsdflow_prepare.task"))


def main() -> None:
    """Entry point of the console script."""
    app()
