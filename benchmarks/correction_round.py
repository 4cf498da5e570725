"""A round of corrections on FIB-25: does a network that trains on a few corrected boxes segment other places better?

    correction_round.py FOLDER [--data ../shared/data]     `make bench-round`

1. `first`: a network of profile `tiny` learns from z < 100, and segments the rest.
2. `lsdflow cut` writes boxes at the five worst errors of z = 110 to 165, and the ground truth corrects them.
3. `boxes`: `lsdflow add-labels`, some iterations from the weights of `first`, with the boxes.
   `no boxes`: the same iterations from the same weights, without them.
4. VOI of z = 110 to 165 and of z >= 200, which no box reaches, at the threshold that is best in z = 110 to 165.

What FOLDER holds already is kept: run the command again to go on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import zarr
from gpu_machine import print_head, print_row
from labelled_sections import LSDFLOW
from shipped_networks import REAL

from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.inspect import RATE_OF_TRAINED

LEARNED, SIZE = 100, 64
SEGMENTED = '{ begin = "100, 0, 0 vox", shape = "150, 250, 250 vox" }'
CORRECTED = '{ begin = "110, 0, 0 vox", shape = "55, 250, 250 vox" }'
OTHER = '{ begin = "200, 0, 0 vox", shape = "50, 250, 250 vox" }'


def lsdflow(*words: str | Path) -> None:
    """Run a command; its output stays on the screen."""
    subprocess.run([LSDFLOW, *words], check=True)


def write_learned(source: Path, target: Path) -> None:
    """Raw and neurons of z < 100, with the places that they have."""
    made = zarr.open_group(target, mode="w", zarr_format=2)
    for name in ("volumes/raw", "volumes/labels/neuron_ids"):
        array = zarr.open_group(source, mode="r")[name]
        made.create_array(name, data=np.asarray(array[:LEARNED]), chunks=(64, 64, 64)).attrs.update(dict(array.attrs))


def segment(run: Path, volume: Path, settings: dict[str, Any], boxes: tuple[Path, list[Path]] | None = None) -> None:
    """Make the experiment if it is new (from another one, with its boxes), and finish it."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if not run.exists() and boxes is not None:
        lsdflow("add-labels", boxes[0], *boxes[1], "--to", run, *sets)
    elif not run.exists():
        learned = run.parent / "learned.zarr"
        write_learned(volume, learned)
        words = ["--volume", volume, "--truth", volume, "--train", learned, "--profile", "tiny", "--mode", "mtlsd"]
        lsdflow("init", run, *words, "--network", "none", *sets)
    lsdflow("run", run)


def correct(run: Path, volume: Path) -> list[Path]:
    """Cut the boxes of the worst errors, if they are not cut yet, and save the truth as their labels."""
    folder = run / "boxes"
    if not folder.exists():
        lsdflow("cut", run, "--at", "worst:1..5", "--size", str(SIZE))
    truth = zarr.open_group(volume, mode="r")["volumes/labels/neuron_ids"]
    for box in folder.iterdir():
        facts = read_json(box / "box.json")
        place = tuple(slice(b, b + n) for b, n in zip(facts["begin_vox"], facts["shape_vox"], strict=True))
        labels = np.unique(np.asarray(truth[place]), return_inverse=True)[1].reshape(facts["shape_vox"]) + 1
        tifffile.imwrite(box / "labels.tif", labels.astype(np.uint16), imagej=True, metadata={"axes": "ZYX"})
    return sorted(folder.iterdir())


def scores(run: Path) -> list[str]:
    """VOI (split + merge) of the corrected part and of the other one."""
    found = json.loads((run / "report" / "scores.json").read_text())
    parts = (found, found["regions"]["other"])
    return [f"{p['voi']:.3f} ({p['voi_split']:.3f} + {p['voi_merge']:.3f})" for p in parts]


def main() -> None:
    """Go on where FOLDER stands and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the experiments")
    parser.add_argument("--first", type=int, default=300, help="iterations of the first training (default 300)")
    parser.add_argument("--more", type=int, default=200, help="iterations of a round (default 200)")
    parser.add_argument("--data", type=Path, default=REAL, help="folder of the real volumes")
    options = parser.parse_args()
    folder, volume = options.folder.resolve(), options.data / "fib25" / "trvol-250-2.zarr"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "predict.roi": SEGMENTED,
        "evaluate.roi": CORRECTED,
        "evaluate.threshold_roi": CORRECTED,
        "evaluate.regions": f"{{ other = {OTHER} }}",
        "train-acrlsd.validation_fraction": 0,
    }
    first = folder / "first"
    segment(first, volume, {**settings, "train-acrlsd.max_iteration": options.first})
    boxes = correct(first, volume)
    more = {"train-acrlsd.max_iteration": options.more}
    segment(folder / "boxes", volume, more, (first, boxes))
    weights = bundle_folder(ExperimentLayout(first).checkpoints("train-acrlsd"), options.first)
    more |= {"train-acrlsd.initial_weights": f'"{weights}"', "train-acrlsd.learning_rate": RATE_OF_TRAINED}
    segment(folder / "no-boxes", volume, {**settings, **more})
    print_head(
        f"FIB-25, {len(boxes)} boxes of {SIZE}^3: {options.first} iterations, then {options.more}",
        ("", "z = 110 to 165 (with the boxes)", "z >= 200 (without)"),
    )
    for name in ("first", "no-boxes", "boxes"):
        print_row((name, *scores(folder / name)))


if __name__ == "__main__":
    main()
