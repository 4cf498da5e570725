"""The [train-acrlsd] table of the experiment file."""

from __future__ import annotations

from lsdflow_training.config import AffinityTrainingConfig


class TrainAcrlsdConfig(AffinityTrainingConfig):
    """Options of train-acrlsd; those left out come from the profile of the experiment."""
