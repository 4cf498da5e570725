"""The command `segment`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_segment.config import SegmentConfig

app = stage_app(StageCommand(name="segment", config=SegmentConfig, task="lsdflow_segment.task"))


def main() -> None:
    """Entry point of the console script."""
    app()
