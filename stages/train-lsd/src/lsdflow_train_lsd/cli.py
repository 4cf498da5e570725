"""The command `train-lsd`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.importers.command import add_import

app = stage_app(StageCommand("train-lsd", TrainLsdConfig))
add_import(app, "train-lsd")


def main() -> None:
    """Entry point."""
    app()
