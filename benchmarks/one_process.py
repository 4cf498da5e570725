"""Print the processor time of what one process does for the whole volume, outside of blocks, as rates for `plan`.

    python benchmarks/one_process.py EXPERIMENT

EXPERIMENT has ground truth and has not run: `lsdflow init EXPERIMENT --volume ... --truth ...`. First prepare runs
twice, and the second time shows what its start takes; then `lsdflow run` finishes the experiment. The rates go into
machines.toml (see record_run.py) and into the table of stages/_launch/README.md.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lsdflow_contract.experiment import load_experiment
from lsdflow_evaluate.inputs import Counting, open_segmented, require_counting
from lsdflow_evaluate.passes import rows_of
from lsdflow_evaluate.scores.counting import BORDER, BORDERS_VOX, counted
from lsdflow_evaluate.self_consistency.seams import MOST_BLOCKS, seams_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.inputs import count_truth, open_inputs
from lsdflow_segment.sizes import SizeCount

BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[1] / "bin"))
VOXELS, BLOCKS = 1e12, 64_000
RAW_AND_TRUTH_BYTES = 1 + 8


def cores_s(command: list[str | Path]) -> float:
    """Processor time of a program and of the processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def process_s(step: Callable[[], object]) -> float:
    """Processor time of a step in this process; its second run counts, whose files are cached and loops compiled."""
    step()
    begun = time.process_time()
    step()
    return time.process_time() - begun


def count_sizes(segmentation: Volume, blocks: BlockPlan) -> None:
    """What segment does after the relabelling."""
    count = SizeCount()
    for block in blocks.blocks():
        count.add(segmentation.read(block.write))
    count.sizes()


def read_rows(counting: Counting) -> None:
    """What evaluate does after the counting."""
    for region in (*counting.volumes.regions, *(f"{BORDER}{n}" for n in BORDERS_VOX)):
        counted(rows_of(counting.task), len(counting.task.plan), region)


def main() -> None:
    """Run what has not run, and print a line for each step."""
    root = Path(sys.argv[1])
    first, again = (cores_s([BIN / "prepare", "run", "--experiment", root]) for _ in range(2))
    subprocess.run([BIN / "lsdflow", "run", root], check=True)
    experiment = load_experiment(root)
    layout, grid = experiment.layout, target_grid(experiment.layout)
    segmented, counting, inputs = (
        open_segmented(experiment.layout, grid),
        require_counting(experiment),
        open_inputs(layout, experiment.table("segment", SegmentConfig)),
    )
    segmentation = open_volume(*segmented.manifest.output_array(layout, "segmentation"), grid)
    blocks = BlockPlan(segmented.fragments.box, segmented.fragments.chunk_shape_vox)
    voxels, rows = float(np.prod(grid.shape_vox)), len(counting.task.plan)
    made = (first - again) / (voxels * RAW_AND_TRUTH_BYTES)
    print(f"prepare, in blocks: {made:.2g} s of a core for a byte, {made * VOXELS / 3600:.2g} h for {VOXELS:g} of them")
    for name, step, unit, amount, many in (
        ("segment, counts fragments against truth", lambda: count_truth(layout, inputs), "voxel", voxels, VOXELS),
        ("segment, checks the sizes", lambda: count_sizes(segmentation, blocks), "voxel", voxels, VOXELS),
        ("evaluate, seams", lambda: seams_of(segmentation, blocks), "block", len(blocks), 2 * MOST_BLOCKS),
        ("evaluate, rows of all blocks", lambda: read_rows(counting), "block", rows, BLOCKS),
    ):
        rate = process_s(step) / amount
        print(f"{name}: {rate:.2g} s for a {unit}, {rate * many / 3600:.2g} h for {many:g} of them")


if __name__ == "__main__":
    main()
