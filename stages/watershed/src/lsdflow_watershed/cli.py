"""The command `watershed`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_watershed.config import WatershedConfig

app = stage_app(StageCommand("watershed", WatershedConfig))


def main() -> None:
    """Entry point."""
    app()
