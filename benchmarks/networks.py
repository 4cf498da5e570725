"""affinities, mtlsd and acrlsd on real EM, each trained for the same minutes, beside the released FFN segmentation.

    networks.py FOLDER [--minutes M] [--volume trvol-250-2.zarr]     `make bench-networks`

A sweep over the three networks (`lsdflow sweep`): trained on z < 150, threshold chosen there, scored on z >= 160, which
no network has seen. acrlsd divides its minutes between its two networks. FFN is scored by the same lines of code on the
same sections; where it segmented nothing, the nearest of its segments is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import distance_transform_edt

import lsdflow
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.io.volumes import open_volume

HERE = Path(__file__).resolve().parent
VOLUME = HERE.parents[1] / "shared" / "data" / "fib25" / "trvol-250-2.zarr"
LSDFLOW = Path(os.environ.get("LSDFLOW_BIN", HERE.parent / "bin")) / "lsdflow"
SCORED_FROM_SECTION = 160
SHARE_OF_LSD = 0.4
# Minutes end the trainings, iterations do not.
BY_MINUTES = """
[train-lsd]
max_iteration = 1_000_000
[train-acrlsd]
max_iteration = 1_000_000
"""
POINT = (
    '{mode} = {{ "experiment.mode" = "{mode}", "train-lsd.max_minutes" = {lsd}, "train-acrlsd.max_minutes" = {rest} }}'
)
NETWORKS = ("affinities", "mtlsd", "acrlsd")
HEAD = "| network | VOI | split | merge | adapted Rand error | training |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    name: str
    voi_split: float
    voi_merge: float
    adapted_rand_error: float
    training: str

    def __str__(self) -> str:
        voi = self.voi_split + self.voi_merge
        parts = (self.name, f"{voi:.3f}", f"{self.voi_split:.3f}", f"{self.voi_merge:.3f}")
        return "| " + " | ".join((*parts, f"{self.adapted_rand_error:.3f}", self.training)) + " |"


def main() -> None:
    """Make what is not made yet, print the table, leave it in FOLDER/table.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the experiments; what is made there already is kept")
    parser.add_argument("--volume", type=Path, default=VOLUME)
    parser.add_argument("--minutes", type=float, default=10.0, help="of training for each of the three (default 10)")
    options = parser.parse_args()
    runs = make_runs(options.volume.resolve(), options.folder.resolve(), options.minutes)
    lines = [ffn(options.volume), *(lsdflow_line(run, name) for name, run in runs.items())]
    table = "\n".join((HEAD, *map(str, lines)))
    (options.folder / "table.md").write_text(table + "\n")
    sys.stdout.write(table + "\n")


def make_runs(volume: Path, folder: Path, minutes: float) -> dict[str, Path]:
    """Run the sweep; return the folders of the three runs by network."""
    grid = folder / "runs"
    if not grid.exists():
        (folder / "base").mkdir(parents=True)
        (folder / "base" / "experiment.toml").write_text(
            (HERE / "fib25.toml").read_text().replace("VOLUME", str(volume))
        )
        (folder / "networks.toml").write_text(sweep_of(minutes))
    for words in (["prepare", folder / "networks.toml", grid], ["run", grid], ["merge", grid]):
        subprocess.run([LSDFLOW, "sweep", *words], check=True)
    found = {run["at"]["network"]: grid / run["nodes"][-1]["folder"] for run in _plan(grid)["runs"]}
    return {name: found[name] for name in NETWORKS}


def _plan(grid: Path) -> Any:
    return json.loads((grid / "sweep.json").read_text())


def sweep_of(minutes: float) -> str:
    """The text of the sweep: each network trains for so long; with an LSD network before it, for what that leaves."""
    lsd = round(minutes * SHARE_OF_LSD, 3)
    rest = {mode: round(minutes - lsd, 3) if mode == "acrlsd" else minutes for mode in NETWORKS}
    points = [POINT.format(mode=mode, lsd=lsd, rest=rest[mode]) for mode in NETWORKS]
    return "\n".join(('base = "base"', "[axes.network]", *points, ""))


def lsdflow_line(run: Path, name: str) -> Line:
    """What an experiment reached, and what it cost."""
    layout = ExperimentLayout(run)
    scores = json.loads((layout.report / "scores.json").read_text())
    parts = []
    for stage in ("train-lsd", "train-acrlsd"):
        if layout.manifest(stage).exists():
            facts = read_manifest(layout, stage).facts
            parts.append(f"{facts['iteration']} iterations in {facts['seconds']:.0f} s")
    return Line(name, scores["voi_split"], scores["voi_merge"], scores["adapted_rand_error"], " + ".join(parts))


def ffn(volume: Path) -> Line:
    """The score of the released FFN segmentation of these sections."""
    reached = lsdflow.compare(ffn_segments(volume), _sections(volume, "volumes/labels/neuron_ids"))
    return Line("FFN (released)", reached.voi_split, reached.voi_merge, reached.adapted_rand_error, "another program")


def ffn_segments(volume: Path) -> np.ndarray:
    """The released FFN segmentation of these sections, its nearest segment where it segmented nothing."""
    labels = _sections(volume, "volumes/baselines/ffn")
    nearest = distance_transform_edt(labels == 0, return_distances=False, return_indices=True)
    found: np.ndarray = labels[tuple(nearest)]
    return found


def _sections(volume: Path, dataset: str) -> np.ndarray:
    array = open_volume(volume, dataset)
    return array.read(array.box)[SCORED_FROM_SECTION:]


if __name__ == "__main__":
    main()
