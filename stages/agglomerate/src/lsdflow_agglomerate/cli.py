"""The command `agglomerate`."""

from __future__ import annotations

from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_command.app import StageCommand, stage_app

app = stage_app(StageCommand("agglomerate", AgglomerateConfig))


def main() -> None:
    """Entry point."""
    app()
