"""What few labelled sections teach a network, from random weights and from a shipped network of another tissue.

    labelled_sections.py FOLDER [--iterations N] [--data ../shared/data]     `make bench-labelled`

1. FIB-25 (z < 150) with 10, 25, 50 and 150 labelled sections around z = 75. The network is `serial-sections`, which was
   trained on AC4, at 30 x 6 x 6 nm. (The other way round needs 84 sections; AC4 has 80.)
2. Each volume is trained for the same iterations from random weights and from that network, with the settings that
   `lsdflow init --profile general-anisotropic` writes; no section is held out.
3. VOI of z >= 160, which none of them has seen, at the threshold that is best there.

What FOLDER holds already is kept: run the command again to go on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

import numpy as np
import zarr
from gpu_machine import print_head, print_row
from shipped_networks import REAL, Labelled, as_init_reads, best, curve, graph_of, shown, volumes

from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.inspect import RATE_OF_TRAINED
from lsdflow_predict.shipped import NETWORKS

LSDFLOW = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[1] / "bin")) / "lsdflow"
OTHER = NETWORKS / "serial-sections"
TRAINED_SECTIONS = 150
LABELLED = (10, 25, 50, 150)


def write_labelled(count: int, data: Path, target: Path) -> None:
    """Raw of all sections that may be trained; neurons of `count` sections in their middle."""
    source = zarr.open_group(data / "fib25" / "trvol-250-2.zarr", mode="r")
    begin = (TRAINED_SECTIONS - count) // 2
    made = zarr.open_group(target, mode="w", zarr_format=2)
    for name, first, end in (
        ("volumes/raw", 0, TRAINED_SECTIONS),
        ("volumes/labels/neuron_ids", begin, begin + count),
    ):
        attributes = dict(source[name].attrs)
        attributes["offset"] = [first * attributes["resolution"][0], 0, 0]
        array = made.create_array(name, data=np.asarray(source[name][first:end]), chunks=(64, 64, 64))
        array.attrs.update(attributes)


def train(count: int, start: Path | None, iterations: int, folder: Path, data: Path) -> Path:
    """Train, unless it is done; returns the folder of the network."""
    run = folder / f"{count}-{'random' if start is None else start.name}"
    if not run.exists():
        volume = folder / f"{count}.zarr"
        write_labelled(count, data, volume)
        settings = {
            "prepare.training.pad_labels": "true",
            "prepare.target.pad_labels": "true",
            "train-acrlsd.max_iteration": iterations,
            "train-acrlsd.checkpoint_every": iterations,
            "train-acrlsd.validation_fraction": 0,
        }
        if start is not None:
            settings |= {"train-acrlsd.initial_weights": f'"{start}"', "train-acrlsd.learning_rate": RATE_OF_TRAINED}
        words = ["--volume", volume, "--train", volume, "--profile", "general-anisotropic", "--mode", "mtlsd"]
        words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        # With the network itself, `init` would resample the volume to its voxel size.
        subprocess.run([LSDFLOW, "init", run, "--network", "none", *words], check=True)
    if not ExperimentLayout(run).manifest("train-acrlsd").exists():
        subprocess.run([LSDFLOW, "run", run, "--to", "train-acrlsd"], check=True)
    return bundle_folder(ExperimentLayout(run).checkpoints("train-acrlsd"), iterations)


def scored(network: Path, volume: Labelled) -> str:
    """VOI (split + merge) @ the threshold that is best there."""
    read = as_init_reads(volume.raw, volume.network)
    found = curve(volume, graph_of(volume, volume.raw if read is None else read, network))
    return shown(found, best([found]))


def main() -> None:
    """Train what is not trained yet and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the experiments")
    parser.add_argument("--iterations", type=int, default=100, help="of each training (default 100)")
    parser.add_argument("--data", type=Path, default=REAL, help="folder of the real volumes")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    unseen = volumes(options.data)[0]
    print_head(
        f"{unseen.name}: best VOI after {options.iterations} iterations",
        ("labelled sections", "from random weights", f"from {OTHER.name}"),
    )
    print_row(("0", "", scored(OTHER, unseen)))
    for count in LABELLED:
        networks = [train(count, start, options.iterations, folder, options.data) for start in (None, OTHER)]
        print_row((str(count), *(scored(network, unseen) for network in networks)))


if __name__ == "__main__":
    main()
