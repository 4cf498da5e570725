"""The command `train-lsd`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_importers.command import add_import
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.processes.scaling import add_scaling

SUMMARY = "Train the network that predicts LSDs from raw."
app = stage_app(StageCommand("train-lsd", TrainLsdConfig, SUMMARY, has_blocks=False))
add_import(app, "train-lsd")
add_scaling(app, "train-lsd")


def main() -> None:
    """Entry point."""
    app()
