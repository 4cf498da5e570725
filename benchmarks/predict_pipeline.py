"""Does predict keep a fast device busy? The stage, disk to disk, with a network that only waits: no GPU is needed.

    make bench BENCH=predict-pipeline

A tile takes the time that it takes on a device of so many Mvoxel/s, during which no core computes; all else is the
stage as users run it: raw is read, and blocks are compressed, written, read back, compared and marked. No device can be
faster than its own rate, nor than what all cores can read and commit: the smaller of the two is the limit. The latter
is measured in the same run, by a process on each core with an experiment of its own, all at the same time (one core
alone times their number is more, because cores share memory and caches). "one at a time" is the worker without a
pipeline: it reads, computes and commits one block after the other.

Rates are those between the first and the last block; the start of the worker process is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gpu_machine import print_head, print_row
from scipy.ndimage import gaussian_filter
from torch import Tensor

from lsdflow_command.machine import available_cores
from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Geometry, Vox3
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_network.bundle import save_bundle
from lsdflow_network.shapes import input_shape_for_output
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet
from lsdflow_predict import blocks, resources, stage
from lsdflow_predict.stage import Predict
from lsdflow_runtime.engine.block_task import BlockTask, Share
from lsdflow_runtime.engine.blockwise import run_blocks
from lsdflow_runtime.io.volumes import OutputArray

TARGET = "volumes/target.zarr"
# As fast as one H100 with the published network (benchmarks/RESULTS_GPU.md), and with smaller ones.
CARDS = (80, 200, 400)
FASTEST = 1e6
CHANNELS = {"affs": 3}


def main() -> int:
    """Print the tables; 1 if the pipeline reaches less than 90 % of the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--edge", type=int, default=600, help="of the target, in voxels")
    parser.add_argument("--block", type=int, default=120, help="edge of a block and of its one tile, in voxels")
    parser.add_argument("--core", type=int, help="only print what this core alone reads and commits")
    options = parser.parse_args()
    cores = available_cores()
    if options.core is not None:
        print(rate_of_core(options.core, options.edge, options.block))
        return 0
    a_core = rates_of_cores([min(os.sched_getaffinity(0))], options)
    together = rates_of_cores(sorted(os.sched_getaffinity(0))[:cores], options)
    print(f"a core alone reads and commits {a_core:.1f} Mvoxel/s of 3 channels, {cores} cores together {together:.1f}")
    with TemporaryDirectory(prefix="lsdflow-pipeline-") as scratch:
        made = make_experiment(Path(scratch), options.edge, options.block)
        share = share_on_a_gpu(made)
        head = ("device", "limit", "one at a time", f"{share.blocks_at_once} at once", "of the limit")
        print_head("predict: the stage with a device that only waits, Mvoxel/s", head)
        devices = (a_core / 2, cores * a_core / 2, *CARDS)
        reached = [row(made, options.block, device, together, share) for device in devices]
    print_head("cores that a card needs", ("Mvoxel/s of the card", *(f"{n} channels" for n in (3, 13))))
    for device in CARDS:
        print_row((device, *(f"{device * n / 3 / a_core:.0f}" for n in (3, 13))))
    return int(min(reached) < 0.9)


def rates_of_cores(numbers: Sequence[int], options: argparse.Namespace) -> float:
    """The sum of what these cores read and commit at the same time, a process on each, in Mvoxel/s."""
    command = [sys.executable, __file__, "--edge", str(options.edge), "--block", str(options.block), "--core"]
    running = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in numbers]
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def rate_of_core(number: int, edge: int, block: int) -> float:
    """What one core reads and commits, in Mvoxel/s: the stage with a device that takes no time."""
    with TemporaryDirectory(prefix="lsdflow-pipeline-") as scratch:
        made = make_experiment(Path(scratch), edge, block)
        share = share_on_a_gpu(made)
        os.sched_setaffinity(0, {number})
        return rate_of(made, block, FASTEST, share)


def share_on_a_gpu(made: Path) -> Share:
    """How many blocks the worker of a GPU would have at once on this machine, by default."""
    with patch.object(resources, "choose_device", lambda _: "cuda"), patch.object(resources, "gpu_count", lambda: 1):
        return task_of(made).shared


def row(made: Path, block: int, device: float, committed: float, share: Share) -> float:
    """One device; the share of the limit that the pipeline reached."""
    limit = min(device, committed)
    single, several = (rate_of(made, block, device, one) for one in (Share(1), share))
    print_row((*(f"{rate:.3g}" for rate in (device, limit, single, several)), f"{100 * several / limit:.0f} %"))
    return several / limit


def rate_of(made: Path, block: int, device: float, share: Share) -> float:
    """Mvoxel/s between the first and the last block, of one worker."""
    seconds = block**3 / device / 1e6
    with waiting(seconds, share):
        task = replace(task_of(made), worker=partial(worker, made, seconds, share))
        task.marks.remove_all()
        run_blocks(task)
    begun = [attempt.started for attempt in attempts_of(task)]
    finished = [record["finished"] for record in task.marks.records().values()]
    return task.plan.total.size / (max(finished) - min(begun)) / 1e6


def attempts_of(task: BlockTask) -> Sequence[Any]:
    """The attempts of the last run."""
    from lsdflow_command.attempts import AttemptReader

    runs = task.layout.stage_runs("predict")
    found = AttemptReader(runs).ended()
    for path in (runs / "attempts").glob("*.tsv"):
        path.unlink()
    return found


def worker(made: Path, seconds: float, share: Share) -> None:
    """The body of a worker process."""
    with waiting(seconds, share):
        Predict().worker(load_experiment(made))


def task_of(made: Path) -> BlockTask:
    """The pass of the affinities."""
    (task,) = Predict().passes(load_experiment(made))
    return task


@contextmanager
def waiting(seconds: float, share: Share) -> Iterator[None]:
    """Within the block, a tile takes `seconds` and gives levels as smooth as affinities."""

    def load_network(*_: object) -> Callable[[Tensor, Tensor | None, Sequence[str]], tuple[Tensor, Tensor]]:
        """A network without weights."""
        device = threading.Lock()
        levels = torch.from_numpy(smooth_levels(160)[None]).expand(3, -1, -1, -1)

        def network(raw: Tensor, _: Tensor | None, __: Sequence[str]) -> tuple[Tensor, Tensor]:
            """Wait as long as the device computes."""
            with device:
                time.sleep(seconds)
            z, y, x = (n - (CONTEXT_VOX) for n in raw.shape)
            return levels[:, :z, :y, :x], torch.tensor(True)

        return network

    with patch.object(blocks, "load_network", load_network), patch.object(stage, "share_of", lambda *_: share):
        yield


SPEC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))
CONTEXT_VOX = input_shape_for_output(SPEC, (8, 8, 8))[0] - 8


def make_experiment(folder: Path, edge: int, block: int) -> Path:
    """A prepared experiment with a network beside it, whose block is one tile; returns its file."""
    bundle = untrained_bundle("affinities", SPEC, CHANNELS, input_shape_for_output(SPEC, (block,) * 3))
    saved = folder / "networks"
    save_bundle(saved, bundle, UNet(SPEC, CHANNELS).state_dict())
    layout = ExperimentLayout(folder / "experiment")
    layout.root.mkdir()
    layout.experiment_toml.write_text(
        '[experiment]\nmode = "affinities"\n[compute]\ndevice = "cpu"\n'
        f'[predict]\ncheckpoint = "{next(saved.iterdir())}"\nallow_voxel_size_mismatch = true\n'
        f'tile_shape = "{block} vox"\nblock_shape = "{block} vox"\n'
    )
    shape: Vox3 = (edge, edge, edge)
    grid = Geometry((8.0, 8.0, 8.0), (0.0, 0.0, 0.0), shape)
    output = OutputArray(layout.root / TARGET, RAW, grid, grid.box, (240, 240, 240))
    output.create({"key": "benchmark"})
    output.open().write(output.box, np.resize(smooth_levels(160), shape))
    facts = {"key": "k", "config": {}, "inputs": {}, "outputs": {"target": TARGET}, "identity": "raw"}
    Manifest(writer=Writer.of("prepare"), **facts).write(layout)
    return layout.experiment_toml


def smooth_levels(edge: int) -> Any:
    """Grey levels u8 (z, y, x) that compress as affinities do: smooth, with many that are nearly 0 or 255."""
    noise = gaussian_filter(np.random.default_rng(0).standard_normal((edge,) * 3).astype(np.float32), 2)
    return (255 / (1 + np.exp(-4 * noise / noise.std()))).astype(np.uint8)


if __name__ == "__main__":
    raise SystemExit(main())
