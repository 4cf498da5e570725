"""The command `agglomerate`."""

from __future__ import annotations

from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_command.app import StageCommand, stage_app

SUMMARY = "Compute the merge scores of touching fragments: the edges of the region adjacency graph."
app = stage_app(StageCommand("agglomerate", AgglomerateConfig, SUMMARY))


def main() -> None:
    """Entry point."""
    app()
