"""What the parts of the rehearsal work on: networks with random weights, a synthetic volume, and two trainings.

    experiments.py       makes all of it, beside the first part, so that no other part waits for it

Everything is made once, in the folder that the parts share, by whoever needs it first.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import PUBLISHED, TINY, Sizes
from part import Part, start
from scipy.ndimage import gaussian_filter

from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import Kind
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_network.bundle import save_bundle
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_training.testing import MICRO_OPTIONS, micro_volume

BENCHMARKS = Path(__file__).resolve().parents[1]
NETWORKS: dict[Kind, tuple[int, dict[str, int]]] = {
    "lsd": (1, {"lsds": 10}),
    "acrlsd": (11, {"affs": 3}),
    "mtlsd": (1, {"lsds": 10, "affs": 3}),
}
VOXEL_NM = (8.0, 8.0, 8.0)
TARGET = "volumes/target.zarr"
EDGE, TINY_EDGE = 768, 48
# The wider network with augmentation and averaged weights, which was 0.4 bits better than profile tiny.
GENERAL: dict[str, Any] = {
    "num_fmaps": 16,
    "fmap_inc_factor": 4,
    "learning_rate": 0.0005,
    "gamma": [0.8, 1.25],
    "noise_probability": 0.2,
    "noise_std": 0.03,
    "blur_probability": 0.1,
    "average_decay": 0.999,
    "elastic_probability": 0.5,
}
# Minutes end the trainings, iterations do not.
UNENDING = {"max_iteration": 1_000_000, "pipeline": "gpu"}
SECTIONS = """[experiment]
name = "sections"
mode = "mtlsd"
profile = "tiny-anisotropic"
[[prepare.training]]
name = "sections"
raw = "VOLUME"
[prepare.target]
raw = "VOLUME"
"""
TINY_SHAPES = {"150, 250, 250": "40, 40, 40", "160, 0, 0": "40, 0, 0", "90, 250, 250": "24, 40, 40"}


@dataclass(frozen=True)
class Experiment:
    """An experiment that trains, and what its wider network needs beside GENERAL."""

    name: str
    options: dict[str, Any]

    def file(self, part: Part) -> Path:
        """Its experiment.toml."""
        return part.scratch / self.name / "experiment.toml"

    def prepare(self, part: Part) -> None:
        """Write it, and prepare its volume."""
        text = SECTIONS if self.name == "serial-sections" else (BENCHMARKS / "fib25.toml").read_text()
        volume = part.data / f"{self.name}.zarr"
        if part.tiny:
            volume = part.scratch / f"{self.name}.zarr"
            micro_volume(volume, (64, 40, 40))
            text = text.replace('"tiny-anisotropic"', '"tiny"')
            for shape, of_toy in TINY_SHAPES.items():
                text = text.replace(shape, of_toy)
        elif not volume.is_dir():
            raise SystemExit(f"{volume} is not there: made --without-volumes, the bundle works with --tiny only")
        self.file(part).parent.mkdir(exist_ok=True)
        self.file(part).write_text(text.replace("VOLUME", str(volume)))
        if part.finish([start("prepare", "run", "--experiment", self.file(part))]) != [0]:
            raise SystemExit(f"{self.name}: prepare failed")


FIB_SEM = Experiment("fib-sem", {"input_shape_vox": [124, 124, 124]})
SERIAL_SECTIONS = Experiment("serial-sections", {})
EXPERIMENTS = (FIB_SEM, SERIAL_SECTIONS)


def once(part: Part, name: str, make: Callable[[], None]) -> None:
    """Make something unless another process has; wait while one is at it."""
    with (part.scratch / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = part.scratch / f"{name}.made"
        if not made.exists():
            make()
            made.touch()


def sizes_of(part: Part) -> Sizes:
    """How large everything is."""
    return TINY if part.tiny else PUBLISHED


def network(part: Part, kind: Kind) -> Path:
    """The bundle of a published network with random weights."""
    folder = part.scratch / "networks" / kind

    def make() -> None:
        """Write it."""
        channels, outputs = NETWORKS[kind]
        spec = sizes_of(part).spec(channels)
        bundle = untrained_bundle(kind, spec, outputs, sizes_of(part).cube(sizes_of(part).tiles[1]))
        torch.manual_seed(0)
        save_bundle(folder, bundle, UNet(spec, outputs).state_dict())

    once(part, kind, make)
    return folder / "00000001"


def prediction(part: Part) -> Path:
    """The experiment.toml of a prepared experiment whose target is synthetic."""
    layout = ExperimentLayout(part.scratch / "prediction")
    edge = TINY_EDGE if part.tiny else EDGE

    def make() -> None:
        """Write it."""
        layout.root.mkdir()
        layout.experiment_toml.write_text(
            f'[compute]\ndevice = "{part.device}"\n[predict]\nallow_lsd_mismatch = true\n'
        )
        grid = Geometry(VOXEL_NM, (0.0, 0.0, 0.0), (edge,) * 3)
        output = OutputArray(layout.root / TARGET, RAW, grid, grid.box, (min(edge, 256),) * 3)
        output.create({"key": "benchmark"})
        output.open().write(grid.box, smooth_noise(edge))
        facts = {"key": "k", "config": {}, "inputs": {}, "outputs": {"target": TARGET}, "identity": "raw"}
        Manifest(writer=Writer.of("prepare"), **facts).write(layout)

    once(part, "prediction", make)
    return layout.experiment_toml


def training(part: Part, experiment: Experiment) -> Path:
    """The experiment.toml of a prepared experiment."""
    once(part, experiment.name, lambda: experiment.prepare(part))
    return experiment.file(part)


def given(part: Part, stage: str, options: dict[str, Any]) -> dict[str, str]:
    """Settings of a training, as --set takes them; of a toy: its own."""
    all_options = {**options, **({**MICRO_OPTIONS, "pipeline": "gpu"} if part.tiny else {})}
    found = {f"{stage}.{name}": json.dumps(value) for name, value in all_options.items()}
    return {"compute.device": json.dumps(part.device), **found}


def smooth_noise(edge: int) -> Any:
    """Raw u8 as smooth as EM, from repeats of a piece."""
    piece = gaussian_filter(np.random.default_rng(0).standard_normal((min(edge, 128),) * 3).astype(np.float32), 1.5)
    grey = np.clip(127 + 60 * piece / piece.std(), 0, 255).astype(np.uint8)
    return np.tile(grey, (-(-edge // len(grey)),) * 3)[:edge, :edge, :edge]


def main() -> int:
    """Make everything."""
    part = Part(__doc__)
    # It takes a minute.
    compiling = subprocess.Popen([sys.executable, "-m", "lsdflow_training.compiled"], stdout=sys.stderr)
    for kind in NETWORKS:
        network(part, kind)
    for experiment in EXPERIMENTS:
        training(part, experiment)
    prediction(part)
    return compiling.wait()


if __name__ == "__main__":
    sys.exit(main())
