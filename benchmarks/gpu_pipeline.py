"""Data and training together, with each pipeline: patches alone, then iterations, and how long they wait for patches.

On a synthetic volume in chunks of 64, with every augmentation of the published training.

    .venv/training/bin/python benchmarks/gpu_pipeline.py [--steps 100] [--step-ms 30]

simulates a GPU on any machine: a step only waits, and all that the GPU does for a patch (cut, deform and change it,
make its targets) takes no time. The host's part is real: what is drawn, files that are read, queues and threads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch

if TYPE_CHECKING:
    from lsdflow_training.run import Training

WARM_UP = 3


def pipeline_rows(
    device: str, folder: Path, network: dict[str, Any], volume_edge: int, rounds: int
) -> Iterator[tuple[str, str, str, str]]:
    """What, size, rate and goal, for LSD and AcrLSD and each pipeline; network: options of the training."""
    from lsdflow_command.machine import available_cores
    from lsdflow_network.inference import load_network
    from lsdflow_training.build import FrozenLsd

    make_volume(folder, volume_edge)
    bundle = next((folder / "network").glob("*/weights.safetensors")).parent
    lsd = FrozenLsd(*load_network(bundle, "lsd"))
    for kind, goal, frozen in (("lsd", 20.0, None), ("acrlsd", 6.7, lsd)):
        for pipeline in ("gunpowder", "gpu"):
            workers = {"num_workers": max(1, available_cores() - 2)} if pipeline == "gunpowder" else {}
            options = {**network, "pipeline": pipeline, **workers}
            training = prepared(folder, kind, options, frozen)
            training = replace(training, settings=replace(training.settings, device=device))
            named = (f"{kind}, pipeline {pipeline}", f"raw {training.settings.shapes.raw_vox[0]}")
            rate, _ = measured(training, folder, frozen, rounds, train=False)
            yield *named, f"{rate:.3g} patches/s", ""
            rate, idle = measured(training, folder, frozen, rounds, train=True)
            goal_met = f"{goal}, 10 % {'yes' if rate >= goal and idle <= 0.1 else 'NO'}"
            yield *named, f"{rate:.3g} it/s, {100 * idle:.0f} % waiting", goal_met


def make_volume(folder: Path, edge: int) -> None:
    """A training volume of voronoi labels, chunked and compressed as prepare leaves it; the experiment around it."""
    import zarr

    from lsdflow_contract.arrays import LABELS, MASK, RAW
    from lsdflow_contract.layout import ExperimentLayout
    from lsdflow_contract.testing import membrane_raw, voronoi_labels
    from lsdflow_training.testing import micro_experiment

    micro_experiment(folder)
    part = voronoi_labels((min(edge, 160),) * 3, 60)
    repeats = -(-edge // part.shape[0])
    labels = np.tile(part, (repeats,) * 3)
    root = zarr.open(str(ExperimentLayout(folder).training_volume("micro")), mode="a")
    for spec, array in ((RAW, membrane_raw(labels)), (LABELS, labels), (MASK, np.ones_like(labels, np.uint8))):
        attributes = dict(root[spec.dataset].attrs)
        made = _empty_array(root, spec.dataset, array)
        made[...] = array
        made.attrs.update(attributes)


def _empty_array(root: Any, name: str, like: Any) -> Any:
    """Format 2, in chunks of 64, in place of the one that is there; with zarr 2, or with zarr 3 (gunpowder 1.5)."""
    how = {"shape": like.shape, "dtype": like.dtype, "chunks": (64, 64, 64), "overwrite": True}
    return root.create_array(name, **how) if hasattr(root, "create_array") else root.create_dataset(name, **how)


def prepared(folder: Path, kind: str, options: dict[str, Any], lsd: Any) -> Training:
    """A resolved training on the volume."""
    from lsdflow_contract.experiment import load_experiment
    from lsdflow_training.config import AffinityTrainingConfig
    from lsdflow_training.run import resolve_training

    toml = folder / f"{kind}.toml"
    lines = ["[experiment]", 'mode = "acrlsd"', 'profile = "standard"', "[compute]", 'device = "cpu"', "[train-acrlsd]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    toml.write_text("\n".join(lines) + "\n", encoding="utf-8")
    experiment = load_experiment(toml)
    config = experiment.table("train-acrlsd", AffinityTrainingConfig)
    stage = "train-lsd" if kind == "lsd" else "train-acrlsd"
    return resolve_training(experiment, config, stage, kind, None if lsd is None else lsd.bundle)


def measured(training: Training, folder: Path, lsd: Any, rounds: int, train: bool) -> tuple[float, float]:
    """(Patches or iterations per second, share of the time spent waiting for patches), after some to warm up."""
    from lsdflow_training.compiled import compile_everything
    from lsdflow_training.data.patch import to_patch
    from lsdflow_training.data.streams import make_stream
    from lsdflow_training.step import train_step
    from lsdflow_training.timing import NodeTimes
    from lsdflow_training.trainer import Trainer

    compile_everything()
    made = Trainer(training.settings, training.sources, folder / "run", training.key, lsd)
    waited = begin = 0.0
    with make_stream(made.keys, training.settings, training.sources, 1, 1, NodeTimes()) as stream:
        for number in range(WARM_UP + rounds):
            if number == WARM_UP:
                finish(made.device)
                waited, begin = 0.0, time.perf_counter()
            asked = time.perf_counter()
            patch = to_patch(next(stream), made.keys, made.device)
            finish(made.device)
            waited += time.perf_counter() - asked
            if train:
                train_step(made.network, made.optimizer, [patch], made.precision)
        finish(made.device)
        seconds = time.perf_counter() - begin
    return rounds / seconds, waited / seconds


def finish(device: torch.device) -> None:
    """Wait for what the device has been asked to do by this thread."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def simulated_rows(folder: Path, volume_edge: int, steps: int, step_s: float) -> Iterator[tuple[str, float, float]]:
    """What, share of the time waiting for patches, and milliseconds of the host for each; no data workers anywhere."""
    make_volume(folder, volume_edge)
    for profile, elastic in (("tiny", 0.2), ("standard", 1.0)):
        network = {"num_fmaps": 12, "fmap_inc_factor": 3, "downsample_factors": [[2, 2, 2], [2, 2, 2]]}
        options = {**network, "input_shape_vox": [84, 84, 84], "elastic_probability": elastic, "num_workers": 0}
        for pipeline, fits in (("gpu", True), ("gpu", False), ("gunpowder", False)):
            training = prepared(folder, "mtlsd", {**options, "pipeline": pipeline}, None)
            where = "in memory" if fits else "read for each patch"
            yield f"{pipeline}, augmentation of {profile}, volume {where}", *waited(training, fits, steps, step_s)


def waited(training: Training, fits: bool, steps: int, step_s: float) -> tuple[float, float]:
    """(Share of the time spent waiting, milliseconds of the host for one patch) of steps that only wait."""
    from lsdflow_training.compiled import compile_everything
    from lsdflow_training.data.device_volumes import DeviceVolume
    from lsdflow_training.data.pipeline import make_keys
    from lsdflow_training.data.streams import make_stream
    from lsdflow_training.timing import DataWait, NodeTimes

    compile_everything()
    wait, times = DataWait(warn=False), NodeTimes()
    with ExitStack() as simulated:
        simulated.enter_context(patch.object(DeviceVolume, "crops", lambda *_: {}))
        simulated.enter_context(patch("lsdflow_training.data.streams.make_patch", lambda *_: None))
        if not fits:
            simulated.enter_context(patch("lsdflow_training.data.volume_arrays.free_memory_bytes", lambda: 0))
        stream = simulated.enter_context(make_stream(make_keys(), training.settings, training.sources, 1, 1, times))
        for _ in range(steps):
            with wait:
                next(stream)
            time.sleep(step_s)
    return wait.share or 0.0, 1e3 * sum(times.seconds.values()) / max(times.batches, 1)


def main() -> None:
    """Print the table of the simulation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--edge", type=int, default=256, help="of the volume, voxels")
    asked = parser.parse_args()
    print(f"| no data workers, steps that wait {asked.step_ms:g} ms | waiting for patches | host, ms a patch | goal |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for what, share, ms in simulated_rows(Path(folder), asked.edge, asked.steps, asked.step_ms / 1e3):
            goal = f"5 % {'yes' if share <= 0.05 else 'NO'}" if what.endswith("in memory") else ""
            print(f"| {what} | {100 * share:.1f} % | {ms:.1f} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
