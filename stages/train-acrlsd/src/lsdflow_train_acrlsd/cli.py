"""The command `train-acrlsd`."""

from __future__ import annotations

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_importers.command import add_import
from lsdflow_train_acrlsd.config import TrainAcrlsdConfig
from lsdflow_training.processes.scaling import add_scaling

SUMMARY = "Train the affinity network: behind a frozen LSD network (acrlsd), together with LSDs (mtlsd), or alone."
app = stage_app(StageCommand("train-acrlsd", TrainAcrlsdConfig, SUMMARY, has_blocks=False))
add_import(app, "train-acrlsd")
add_scaling(app, "train-acrlsd")


def main() -> None:
    """Entry point."""
    app()
