"""The command `watershed`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_watershed.config import WatershedConfig

SUMMARY = "Compute fragments (supervoxels) from affinities, and the nodes of the region adjacency graph."
app = stage_app(StageCommand("watershed", WatershedConfig, SUMMARY))


def main() -> None:
    """Entry point."""
    app()
