"""The command `evaluate`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_evaluate.config import EvaluateConfig

app = stage_app(StageCommand(name="evaluate", config=EvaluateConfig, task="lsdflow_evaluate.task"))


def main() -> None:
    """Entry point of the console script."""
    app()
