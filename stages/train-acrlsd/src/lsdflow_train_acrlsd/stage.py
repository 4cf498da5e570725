"""The stage train-acrlsd: it trains the affinity network of the experiment's mode.

acrlsd   raw + LSDs of a frozen LSD network -> affinities
mtlsd    raw -> LSDs and affinities
affinities   raw -> affinities (baseline)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_contract.checkpoint import Bundle, Kind, read_bundle
from lsdflow_contract.errors import ContractMismatch
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Nm3
from lsdflow_train_acrlsd.config import TrainAcrlsdConfig
from lsdflow_training.run import Training
from lsdflow_training.settings import Targets
from lsdflow_training.stage import TrainStage, lsd_bundle_folder

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd

_SETTINGS = "experiment.toml: train-lsd and train-acrlsd, sigma or volumes"


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

    def resolve(self, experiment: Experiment) -> Training:
        """The resolved training. Raises ContractMismatch (76) if the LSD network was trained for other targets."""
        training = super().resolve(experiment)
        lsd = self.lsd_bundle(experiment)
        if lsd is not None:
            check_lsd_bundle(lsd, training.settings.targets)
        return training

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """Facts about torch and its GPUs."""
        from lsdflow_network.devices import torch_facts

        del experiment
        return torch_facts()


def _lsd_folder(experiment: Experiment) -> Path | None:
    if experiment.common.mode != "acrlsd":
        return None
    table = experiment.table(TrainAcrlsd.name, TrainAcrlsdConfig)
    return lsd_bundle_folder(experiment, table.lsd_checkpoint)


def check_lsd_bundle(bundle: Bundle, targets: Targets) -> None:
    """Raise ContractMismatch unless the bundle's kind, channels, voxel size and sigma match those of this training."""
    found = {
        "kind": (bundle.kind, "lsd"),
        "channels": (str(bundle.outputs), str({"lsds": 10})),
        "voxel size": (_text(bundle.voxel_size_nm), _text(targets.voxel_size_nm)),
        "sigma": (_text(bundle.sigma_nm), _text(targets.sigma_nm)),
    }
    same_lengths = _close(bundle.voxel_size_nm, targets.voxel_size_nm) and _close(bundle.sigma_nm, targets.sigma_nm)
    wrong = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    if not wrong or (same_lengths and not {"kind", "channels"} & wrong.keys()):
        return
    raise ContractMismatch(
        "the LSD network does not fit this training",
        where=_SETTINGS if bundle.is_planned else f"LSD bundle of iteration {bundle.iteration}",
        wanted="; ".join(f"{name} {pair[1]}" for name, pair in wrong.items()),
        found="; ".join(f"{name} {pair[0]}" for name, pair in wrong.items()),
        fix="give train-lsd and train-acrlsd the same sigma and volumes of the same voxel size",
    )


def _close(a: Nm3 | None, b: Nm3) -> bool:
    return a is not None and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))


def _text(values: Nm3 | None) -> str:
    return "none" if values is None else f"{', '.join(f'{v:g}' for v in values)} nm"
