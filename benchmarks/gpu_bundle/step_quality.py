"""How good a network is after some minutes on one GPU: FIB-25, trained on z < 150, scored on z >= 160.

    step_quality.py VOLUME [--minutes 7] [--set KEY=VALUE ...]

The network and the sections are those of networks.py, whose table has the scores after ten minutes on two CPU cores;
the row of FFN is the released segmentation, scored in the same way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_machine import Busy, describe, formatted, require_device
from networks import BY_MINUTES, HEAD, HERE, ffn, lsdflow_line

from lsdflow_training.testing import MICRO_OPTIONS, micro_volume

FFN = "volumes/baselines/ffn"
# Sections and shapes of fib25.toml, and those of the toy.
TINY_SHAPES = {"150, 250, 250": "40, 40, 40", "160, 0, 0": "40, 0, 0", "90, 250, 250": "24, 40, 40"}
TINY_SETTINGS = [
    f"train-acrlsd.{name}={value}".replace("'", '"').replace("True", "true")
    for name, value in {**MICRO_OPTIONS, "sigma": '"24 nm"', "precision": '"float32"'}.items()
]


def main() -> int:
    """Train, segment, score, print the table; the exit code of the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("volume", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy on a synthetic volume, to try the script")
    parser.add_argument("--minutes", type=float, default=7.0, help="of training; scoring takes one or two more")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="other settings")
    options = parser.parse_args()
    require_device(options.device)
    print(describe(options.device), flush=True)
    with TemporaryDirectory(prefix="lsdflow-gpu-") as scratch:
        folder = Path(scratch) / "experiment"
        folder.mkdir()
        volume = options.volume
        if options.tiny:
            volume = Path(scratch) / "synthetic.zarr"
            micro_volume(volume, (64, 40, 40))
        (folder / "experiment.toml").write_text(experiment_text(volume, options.tiny))
        with Busy(options.device) as busy:
            code = run(folder, settings(options))
        if code == 0:
            print(f"\n### mtlsd, profile tiny, pipeline gpu, {volume.name}\n\n{HEAD}")
            if (volume / FFN).exists():
                print(ffn(volume))
            print(lsdflow_line(folder, "mtlsd"))
            print(
                f"\nGPU busy {formatted(busy.percent, '.0f')} % of the whole, {formatted(busy.gib, '.1f')} GiB at most"
            )
    return code


def experiment_text(volume: Path, tiny: bool) -> str:
    """The experiment of networks.py on this volume."""
    text = (HERE / "fib25.toml").read_text() + BY_MINUTES
    for shape, of_toy in TINY_SHAPES.items() if tiny else ():
        text = text.replace(shape, of_toy)
    return text.replace("VOLUME", str(volume.resolve()))


def settings(options: argparse.Namespace) -> list[str]:
    """What differs from networks.py."""
    workers = min(8, len(os.sched_getaffinity(0)))
    given = [
        f'compute.device="{options.device}"',
        f"compute.workers={workers}",
        'train-acrlsd.pipeline="gpu"',
        *(
            (*TINY_SETTINGS, 'compute.runner="serial"')
            if options.tiny
            else [f"train-acrlsd.max_minutes={options.minutes}"]
        ),
        *options.set,
    ]
    return [part for setting in given for part in ("--set", setting)]


def run(folder: Path, given: list[str]) -> int:
    """All stages, one after another; what they say goes to stderr."""
    command = [str(Path(os.environ["LSDFLOW_BIN"]) / "lsdflow"), "run", str(folder), *given]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
