"""A tiny base experiment for sweeps: real volumes to prepare, affinities as predict would have left them."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from typer.testing import CliRunner

from lsdflow_contract.arrays import AFFS
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.sealing import write_sealed
from lsdflow_contract.testing import voronoi_labels
from lsdflow_runtime.io.volumes import OutputArray

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
ONE_AT_A_TIME = threading.Lock()  # the runner takes the standard output of the whole process
GRID = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), (28, 32, 32))
TABLES = """[experiment]
name = "base"
mode = "mtlsd"
[compute]
runner = "serial"
[prepare]
training = [{ name = "cells", raw = "input/cells.hdf" }]
target = { raw = "input/cells.hdf", truth = "input/cells.hdf" }
[watershed]
block_shape = "16 vox"
context = "6 vox"
min_seed_distance_vox = 4
[agglomerate]
merge_functions = ["hist_quant_75", "mean"]
[segment]
thresholds_step = 0.1
threshold = 0.3
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Folder of an experiment whose volumes are there, and nothing is made yet."""
    return make_base(tmp_path / "base")


def make_base(root: Path) -> Path:
    """Write input/cells.hdf and experiment.toml."""
    root.mkdir()
    (root / "experiment.toml").write_text(TABLES)
    (root / "input").mkdir()
    labels = cells()
    raw = (60 + 15 * (labels % 11)).astype(np.uint8)
    with h5py.File(root / "input" / "cells.hdf", "w") as container:
        for name, values in (("volumes/raw", raw), ("volumes/labels/neuron_ids", labels)):
            container.create_dataset(name, data=values).attrs["resolution"] = GRID.voxel_size_nm
    return root


def cells() -> NDArray[np.uint64]:
    """20 cells (z, y, x)."""
    return voronoi_labels(GRID.shape_vox, 20, 3).astype(np.uint64)


def bring_affinities(root: Path) -> Experiment:
    """As if predict had finished in the experiment: noisy affinities (3, z, y, x) u8 of the cells."""
    labels = cells().astype(np.int64)
    near = np.zeros(labels.shape, bool)
    for axis in range(3):
        near |= np.pad(np.diff(labels, axis=axis) != 0, [(0, int(axis == a)) for a in range(3)])
    noise = gaussian_filter(np.random.default_rng(0).normal(0, 1, (3, *labels.shape)), (0, 1.5, 1.5, 1.5))
    values = gaussian_filter(np.where(near, 0.1, 0.95), 0.7) + 0.15 * noise / noise.std()
    experiment = load_experiment(root)
    container = experiment.layout.result("predict", "affs") / "predictions.zarr"
    output = OutputArray(container, AFFS, GRID, GRID.box, GRID.shape_vox)
    output.create({"key": AFFS.dataset})
    output.open().write(GRID.box, (np.clip(values, 0, 1) * 255).astype(np.uint8))
    facts = {"key": "affs", "config": {}, "inputs": {}, "identity": "affs", "facts": {"seconds": 2.0}}
    outputs = {"affs": str((container / AFFS.dataset).relative_to(root))}
    Manifest.model_validate({"writer": Writer.of("predict"), "outputs": outputs, **facts}).write(experiment.layout)
    return experiment


@pytest.fixture
def sweep_file(base: Path) -> Callable[[str], Path]:
    """Writes SWEEP.toml beside the base: the text below `base = "base"`."""

    def write(text: str) -> Path:
        path = base.parent / "grid.toml"
        path.write_text(f'base = "base"\n{text}')
        return path

    return write


def ask_here(stage: str, arguments: Sequence[str]) -> Any:
    """What a stage's command answers, asked in this process."""
    app = importlib.import_module(f"lsdflow_{stage.replace('-', '_')}.cli").app
    with ONE_AT_A_TIME:
        return json.loads(CliRunner().invoke(app, list(arguments)).stdout.splitlines()[-1])


# Where FakeStages say that prepare left the target.
VOLUME = "results/prepare/0f0f0f0f/target.zarr"


class FakeStages:
    """Runs no stage: leaves a manifest for each, and for evaluate scores that depend on the run's own seed."""

    def __init__(self, fails: Callable[[str, Experiment], int] = lambda _stage, _experiment: 0) -> None:
        self.calls: list[tuple[str, str]] = []
        self._fails = fails

    def __call__(self, stage: str, arguments: Sequence[str]) -> int:
        """Called as lsdflow_launch.commands.run_stage is; the exit code that `fails` says. A report is not written."""
        if arguments[0] == "report":
            return 0
        experiment = load_experiment(Path(arguments[arguments.index("--experiment") + 1]))
        self.calls.append((stage, experiment.path.parent.name))
        code = self._fails(stage, experiment)
        if code:
            outcome = {"error": {"what": f"{stage} broke"}, "exit_code": code}
            write_json(experiment.layout.stage_runs(stage) / "1" / "outcome.json", outcome)
            return code
        if stage == "evaluate":
            voi = float(experiment.tables["segment"].get("threshold", 0.0)) + experiment.common.seed
            write_sealed(
                experiment.layout.report / "scores.json", {"voi": voi, "merge_function": "mean", "has_truth": True}
            )
        made = {
            "key": stage,
            "config": {},
            "inputs": {},
            "outputs": {"target": VOLUME} if stage == "prepare" else {},
            "identity": f"{stage} {experiment.path.parent}",
        }
        facts = {"seconds": 3.0}
        Manifest.model_validate({"writer": Writer.of(stage), **made, "facts": facts}).write(experiment.layout)
        return 0
