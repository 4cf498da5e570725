"""The stage train-lsd: it trains the LSD network of mode acrlsd. Other modes have no separate LSD network."""

from __future__ import annotations

from lsdflow_contract.checkpoint import Kind
from lsdflow_contract.experiment import Experiment
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.stage import TrainStage


class TrainLsd(TrainStage):
    """raw -> LSDs."""

    name = "train-lsd"
    config = TrainLsdConfig

    def kind(self, experiment: Experiment) -> Kind:
        """The kind "lsd" in every mode."""
        del experiment
        return "lsd"

    def not_needed(self, experiment: Experiment) -> str | None:
        """A message that names the mode, if the mode has no separate LSD network; else as for every training."""
        mode = experiment.common.mode
        if mode == "acrlsd":
            return super().not_needed(experiment)
        return f"mode {mode} has no separate LSD network: train-acrlsd trains its one network"
