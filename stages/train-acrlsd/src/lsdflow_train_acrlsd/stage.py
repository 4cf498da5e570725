"""The stage train-acrlsd: it trains the affinity network of the experiment's mode.

acrlsd   raw + LSDs of a frozen LSD network -> affinities
mtlsd    raw -> LSDs and affinities
affinities   raw -> affinities (baseline)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_contract.checkpoint import Bundle, Kind, read_bundle
from lsdflow_contract.experiment import Experiment
from lsdflow_train_acrlsd.agreement import check_lsd_bundle
from lsdflow_train_acrlsd.config import TrainAcrlsdConfig
from lsdflow_training.run import Prepared
from lsdflow_training.stage import TrainStage, lsd_bundle_folder

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd


class TrainAcrlsd(TrainStage):
    """The network that predicts affinities."""

    name = "train-acrlsd"
    config = TrainAcrlsdConfig

    def kind(self, experiment: Experiment) -> Kind:
        """The mode of the experiment."""
        return experiment.common.mode

    def lsd_bundle(self, experiment: Experiment) -> Bundle | None:
        """The bundle of the LSD network in mode acrlsd, else None. Raises MissingInput (66) if it is not trained."""
        folder = _lsd_folder(experiment)
        return None if folder is None else read_bundle(folder)

    def frozen_lsd(self, experiment: Experiment) -> FrozenLsd | None:
        """The LSD network of mode acrlsd, with its weights; None in other modes."""
        folder = _lsd_folder(experiment)
        if folder is None:
            return None
        from lsdflow_network.inference import load_network
        from lsdflow_training.build import FrozenLsd  # torch takes seconds to load

        return FrozenLsd(*load_network(folder, expect_kind="lsd"))

    def prepare(self, experiment: Experiment) -> Prepared:
        """The resolved training. Raises ContractMismatch (76) if the LSD network was trained for other targets."""
        prepared = super().prepare(experiment)
        lsd = self.lsd_bundle(experiment)
        if lsd is not None:
            check_lsd_bundle(lsd, prepared.recipe.targets)
        return prepared

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """Facts about torch and its GPUs."""
        from lsdflow_network.torch_build import torch_facts

        del experiment
        return torch_facts()


def _lsd_folder(experiment: Experiment) -> Path | None:
    if experiment.common.mode != "acrlsd":
        return None
    table = experiment.table(TrainAcrlsd.name, TrainAcrlsdConfig)
    return lsd_bundle_folder(experiment, table.lsd_checkpoint)
