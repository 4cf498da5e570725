"""The command `predict`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_predict.config import PredictConfig

app = stage_app(
    StageCommand(name="predict", config=PredictConfig, task="lsdflow_predict.task", problems="lsdflow_predict.problems")
)


def main() -> None:
    """Entry point."""
    app()
