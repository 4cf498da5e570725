"""The command `train-acrlsd`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_train_acrlsd.config import TrainAcrlsdConfig

app = stage_app(StageCommand(name="train-acrlsd", config=TrainAcrlsdConfig, task="lsdflow_train_acrlsd.task"))


def main() -> None:
    """Entry point."""
    app()
