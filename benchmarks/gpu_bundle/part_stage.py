"""The stage predict, from raw on disk to verified affinities on disk, with its default settings and one worker.

The published networks with random weights, on a synthetic volume. The rate is that from the first block to the last
one; "with start" includes that of the processes, and the verification. A run that its limit ends is measured as far as
it came.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from experiments import network, prediction
from gpu_machine import Busy, formatted, print_head
from part import Part, settings, start

from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_predict.stage import Predict

COLUMNS = (
    *("mode", "tile out", "block", "blocks", "Mvoxel/s", "with start", "start s", "GPU busy %, first to last block"),
    *("GPU busy %, whole", "GPU GiB", ""),
)
MODES = ("mtlsd", "acrlsd")


def main() -> int:
    """Print the table; 1 if a run failed."""
    part = Part(__doc__)
    part.plan(*MODES)
    made = prediction(part)
    for kind in ("mtlsd", "lsd", "acrlsd"):
        network(part, kind)
    print_head("predict: the stage, from disk to disk", COLUMNS)
    manifests: dict[str, Any] = {}
    failed = max(part.attempt(mode, partial(measure, made, mode, part, manifests)) for mode in MODES)
    for mode, facts in manifests.items():
        print(f"\nmanifest, {mode}: `{json.dumps(facts)}`", flush=True)
    return failed


def measure(made: Path, mode: str, part: Part, manifests: dict[str, Any]) -> int:
    """Run the stage and print what it reached; the facts of its manifest go to `manifests`. 1 if it failed."""
    given = {"experiment.mode": f'"{mode}"', "compute.workers": 1, "predict.checkpoint": f'"{network(part, mode)}"'}
    if mode == "acrlsd":
        given["predict.lsd_checkpoint"] = f'"{network(part, "lsd")}"'
    begun = time.time()
    with Busy(part.device) as busy:
        command = start("predict", "run", "--experiment", made, *settings(given))
        code = part.finish([command], share=1 / (len(MODES) - MODES.index(mode)))[0]
    whole_s = time.time() - begun
    experiment = load_experiment(made, [f"{name}={value}" for name, value in given.items()])
    task = Predict().last_pass(experiment)
    records = task.marks.records()
    if not records:
        part.row(mode, [mode, f"no block was finished in {whole_s:.0f} s; exit code {code}"], done=False)
        return 1
    # A record has the block's share of its worker's time; its blocks at once began that many times earlier.
    at_once = task.shared.blocks_at_once
    first = min(record["finished"] - at_once * record["seconds"] for record in records.values())
    last = max(record["finished"] for record in records.values())
    mvoxels = sum(task.plan.block(number).write.size for number in records) / 1e6
    tile = Predict().plan(experiment)["tile_output_vox"][0]
    ended = "" if code == 0 else f"exit code {code}" if code is not None else "ended at its limit"
    cells = [
        *(mode, tile, task.plan.block(0).write.shape_vox[0], f"{len(records)} of {len(task.plan)}"),
        *(f"{mvoxels / (last - first):.3g}", f"{mvoxels / whole_s:.3g}", f"{first - begun:.1f}"),
        *(formatted(busy.between(first, last), ".0f"), formatted(busy.percent, ".0f"), formatted(busy.gib, ".1f")),
    ]
    part.row(mode, [*cells, ended], done=code == 0)
    if code == 0:
        facts = read_manifest(experiment.layout, "predict").facts
        manifests[mode] = {name: value for name, value in facts.items() if name != "libraries"}
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
