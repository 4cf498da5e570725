"""TensorFlow with two CPU devices and one thread, and micro trainings: networks and patches of both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")


@pytest.fixture(scope="session", autouse=True)
def _two_devices() -> None:
    from lsdflow_tensorflow.engine import start_tensorflow

    start_tensorflow(1, "cpu", cpus=2)


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Any]:
    """prepared("mtlsd", option=value, ...) -> the resolved micro training of that kind."""
    from lsdflow_contract.experiment import load_experiment
    from lsdflow_training.config import AffinityTrainingConfig
    from lsdflow_training.run import Training, resolve_training
    from lsdflow_training.testing import micro_experiment

    def make(kind: str = "mtlsd", lsd=None, voxel_size_nm=(8.0, 8.0, 8.0), **options) -> Training:
        options = {"elastic_probability": 0.0, "schedule": "constant", **options}
        toml = micro_experiment(tmp_path, "mtlsd" if kind == "lsd" else kind, options, voxel_size_nm)
        experiment = load_experiment(toml)
        config = experiment.table("train-acrlsd", AffinityTrainingConfig)
        return resolve_training(experiment, config, "train-lsd" if kind == "lsd" else "train-acrlsd", kind, lsd)

    return make


@dataclass
class Torch:
    """A micro network of torch with its optimizer, as the torch trainer makes them, and some patches."""

    settings: Any
    trained: Any
    network: Any
    optimizer: Any
    lsd: Any
    patches: list[Any]

    def engine(self, strategy: Any = None) -> Any:
        """An engine that begins where this network is."""
        from lsdflow_tensorflow.cluster import Cluster
        from lsdflow_tensorflow.engine import Engine, make_strategy

        strategy = strategy or make_strategy(Cluster(), ["CPU:0"])
        return Engine(self.settings, strategy, self.trained, self.optimizer, self.lsd)


@pytest.fixture
def torch_side(prepared) -> Callable[..., Torch]:
    """torch_side("acrlsd", patches=3, option=value, ...) -> network, optimizer, random patches of a micro training."""

    def make(kind: str = "mtlsd", patches: int = 1, **options) -> Torch:
        import torch

        from lsdflow_network.composition import AcrLsd
        from lsdflow_network.unet import UNet

        torch.manual_seed(3)
        lsd = _untrained_lsd() if kind == "acrlsd" else None
        settings = prepared(kind, lsd.bundle if lsd else None, **options).settings
        trained = UNet(settings.unet, settings.outputs)
        network = AcrLsd(lsd.network, lsd.bundle.unet, trained, settings.unet) if lsd else trained
        optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3, betas=settings.schedules.betas)
        return Torch(settings, trained, network, optimizer, lsd, [_patch(settings) for _ in range(patches)])

    return make


def _untrained_lsd() -> Any:
    from lsdflow_contract.checkpoint import UNetSpec
    from lsdflow_network.testing import untrained_bundle
    from lsdflow_network.unet import UNet
    from lsdflow_training.build import FrozenLsd

    spec = UNetSpec(in_channels=1, num_fmaps=3, fmap_inc_factor=2, downsample_factors=((1, 2, 2),))
    return FrozenLsd(untrained_bundle("lsd", spec, {"lsds": 10}, (32, 36, 36)), UNet(spec, {"lsds": 10}))


def _patch(settings: Any) -> Any:
    """Random raw and targets; a third of the weights are 0."""
    import torch

    from lsdflow_training.data.patch import Patch

    shapes = {name: (1, channels, *settings.shapes.output_vox) for name, channels in settings.outputs.items()}
    weights = {name: torch.rand(shape) * (torch.rand(shape) > 1 / 3) for name, shape in shapes.items()}
    raw = torch.rand(1, 1, *settings.shapes.raw_vox) * 2 - 1
    return Patch(raw, {name: torch.rand(shape) for name, shape in shapes.items()}, weights)
