"""The [train-lsd] table of the experiment file."""

from __future__ import annotations

from lsdflow_training.config import TrainingConfig


class TrainLsdConfig(TrainingConfig):
    """Options of train-lsd; those left out come from the profile of the experiment."""
