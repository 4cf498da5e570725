"""Fixtures for tests of training: a micro experiment, and its settings and sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Any]:
    """prepared("mtlsd", option=value, ...) -> the resolved micro training of that kind."""
    pytest.importorskip("gunpowder", reason="the training environment has gunpowder")
    from lsdflow_contract.checkpoint import Bundle
    from lsdflow_contract.experiment import load_experiment
    from lsdflow_training.config import AffinityTrainingConfig
    from lsdflow_training.run import Training, resolve_training
    from lsdflow_training.testing import micro_experiment

    def make(kind: str = "mtlsd", lsd: Bundle | None = None, voxel_size_nm=(8.0, 8.0, 8.0), **options) -> Training:
        toml = micro_experiment(tmp_path, "mtlsd" if kind == "lsd" else kind, options, voxel_size_nm)
        experiment = load_experiment(toml)
        config = experiment.table("train-acrlsd", AffinityTrainingConfig)
        return resolve_training(experiment, config, "train-lsd" if kind == "lsd" else "train-acrlsd", kind, lsd)

    return make
