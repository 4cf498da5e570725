"""What the parts of the rehearsal work on: networks with random weights, a synthetic volume, and trainings.

    experiments.py       makes all of it, beside the first part, so that no other part waits for it

Everything is made once, in the folder that the parts share, by whoever needs it first.
"""

from __future__ import annotations

import fcntl
import json
import shutil
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
# Minutes end the trainings, iterations do not.
UNENDING = {"max_iteration": 1_000_000, "pipeline": "gpu", "validation_fraction": 0.0}
SECTIONS = """[experiment]
name = "sections"
mode = "mtlsd"
profile = "general-anisotropic"
[[prepare.training]]
name = "sections"
raw = "VOLUME"
[prepare.training.roi]
offset = "0, 0, 0 vox"
shape = "SECTIONS, 512, 512 vox"
[prepare.target]
raw = "VOLUME"
"""
TINY_SHAPES = {
    **{"150, 250, 250": "40, 40, 40", "160, 0, 0": "40, 0, 0", "90, 250, 250": "24, 40, 40"},
    **{"80, 512, 512": "40, 40, 40", "60, 512, 512": "40, 40, 40"},
}


@dataclass(frozen=True)
class Experiment:
    """An experiment that trains profile general: its volume, how many sections of it (AC4), and what else it sets."""

    name: str
    volume: str
    options: dict[str, Any]
    sections: int = 80
    seed: int = 0

    def file(self, part: Part) -> Path:
        """Its experiment.toml."""
        return part.scratch / self.name / "experiment.toml"

    def make(self, part: Part) -> None:
        """A copy of the prepared experiment of this volume, so that trainings of one volume run beside each other."""
        prepared = part.scratch / f"prepared-{self.volume}-{self.sections}"
        once(part, prepared.name, lambda: self._prepare(prepared, part))
        shutil.copytree(prepared, self.file(part).parent)

    def _prepare(self, folder: Path, part: Part) -> None:
        """Write the experiment, and prepare its volume."""
        text = (BENCHMARKS / "fib25.toml").read_text().replace('"tiny"', '"general"')
        if self.volume == "serial-sections":
            text = SECTIONS.replace("SECTIONS", str(self.sections))
        volume = part.data / f"{self.volume}.zarr"
        if part.tiny:
            volume = part.scratch / f"{folder.name}.zarr"
            micro_volume(volume, (64, 40, 40))
            text = text.replace('"general-anisotropic"', '"tiny"').replace('"general"', '"tiny"')
            for shape, of_toy in TINY_SHAPES.items():
                text = text.replace(shape, of_toy)
        elif not volume.is_dir():
            raise SystemExit(f"{volume} is not there: made --without-volumes, the bundle works with --tiny only")
        folder.mkdir(exist_ok=True)
        (folder / "experiment.toml").write_text(text.replace("VOLUME", str(volume)))
        if part.finish([start("prepare", "run", "--experiment", folder / "experiment.toml")]) != [0]:
            raise SystemExit(f"{self.volume}: prepare failed")


FIB_SEM = Experiment("fib-sem", "fib-sem", {})
SERIAL_SECTIONS = Experiment("serial-sections", "serial-sections", {})
EXPERIMENTS = (FIB_SEM, SERIAL_SECTIONS)


def _fib(name: str, seed: int = 0, **options: Any) -> Experiment:
    return Experiment(f"fib-{name}", "fib-sem", {"average_decay": 0.999, **options}, seed=seed)


# One ingredient changed at a time; AC4's last 20 sections are kept apart, as FIB-25's last 90 are.
ABLATION = (
    _fib("average"),
    _fib("average-seed-1", seed=1),
    _fib("boundary-0", grow_boundary_vox=0),
    _fib("boundary-2", grow_boundary_vox=2),
    _fib("more-augmentation", elastic_probability=1.0, gamma=[0.6, 1.6], noise_probability=0.5, blur_probability=0.3),
    _fib("less-augmentation", elastic_probability=0.2, gamma=[1, 1], noise_probability=0, blur_probability=0),
    Experiment("fib-last-weights", "fib-sem", {}),
    Experiment("sections-average", "serial-sections", {"average_decay": 0.999}, sections=60),
    Experiment("sections-last-weights", "serial-sections", {}, sections=60),
)


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
    once(part, experiment.name, lambda: experiment.make(part))
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
