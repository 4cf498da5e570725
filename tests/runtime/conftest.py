"""An experiment with a small target volume, and the toy stage on the import path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.arrays import RAW
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.io.volumes import OutputArray

TOY = Path(__file__).parent / "toy"


@pytest.fixture(autouse=True)
def toy_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))
    assert str(TOY) in sys.path


@pytest.fixture
def make_experiment(tmp_path: Path) -> Callable[..., Experiment]:
    def make(name: str = "a", *overrides: str) -> Experiment:
        root = tmp_path / name
        if not root.exists():
            root.mkdir()
            (root / "experiment.toml").write_text('[experiment]\nname = "toy"\nseed = 2\n')
            grid = Geometry((10.0, 5.5, 5.5), (20.0, 0.0, 0.0), (18, 16, 11))
            raw = OutputArray(root / "results" / "prepare" / "target.zarr", RAW, grid, grid.box, (8, 8, 8))
            raw.create({"key": "raw"})
            values = np.random.default_rng(0).integers(0, 256, grid.shape_vox).astype(np.uint8)
            raw.open().write(Box((0, 0, 0), grid.shape_vox), values)
        return load_experiment(root, list(overrides))

    return make
