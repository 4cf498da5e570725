"""What a run would cost: main memory of a worker, tiles, seconds from finished blocks or from one measured tile."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from lsdflow_contract.arrays import LSDS
from lsdflow_contract.geometry import Box
from lsdflow_network.costs import multiply_adds
from lsdflow_predict.checkpoints import BundleAt
from lsdflow_predict.device_memory import memory_of_device
from lsdflow_predict.devices import choose_device
from lsdflow_predict.job import Job
from lsdflow_predict.memory_needed import fitting_tile_edge, tile_bytes, worker_bytes
from lsdflow_predict.networks import prepare_torch
from lsdflow_predict.opened import load
from lsdflow_predict.scheme import Layer
from lsdflow_predict.tiles import Tiling
from lsdflow_runtime.engine.block_task import BlockTask


def estimate(job: Job, task: BlockTask, first_pass: BlockTask | None = None) -> dict[str, Any]:
    """Facts for `plan`: shapes of tiles, memory of a worker, and hours if something is known about the speed."""
    scheme, networks = job.scheme, job.networks
    facts: dict[str, Any] = {
        "tile_input_vox": list(scheme.affinities.tiling.input_vox),
        "tile_output_vox": list(scheme.affinities.tiling.output_vox),
        "main_memory_per_worker_bytes": worker_bytes(scheme, networks),
        "device_memory_per_worker_bytes": tile_bytes(scheme, networks),
        "largest_tile_shape_that_fits_vox": _largest_tile_edge(job),
        "workers": job.experiment.compute.workers,
        "device": choose_device(job.experiment.compute.device),
        "accepted": list(networks.accepted),
        "multiply_adds": affinity_multiply_adds(job) + (0 if first_pass else lsd_multiply_adds(job)),
    }
    if first_pass is not None:
        facts["lsd_blocks"] = len(first_pass.plan)
        facts["lsd_bytes_out_uncompressed"] = LSDS.channels * first_pass.plan.total.size
    if scheme.lsds is not None:
        facts["lsd_tile_input_vox"] = list(scheme.lsds.tiling.input_vox)
        if first_pass is None:
            facts["lsd_tiles_per_affinity_tile"] = lsd_tiles_per_affinity_tile(scheme.affinities, scheme.lsds)
    seconds = seconds_of_finished(task)
    if seconds is not None:
        facts["seconds_per_block"] = seconds
        facts["worker_hours_left"] = seconds * (len(task.plan) - len(task.marks.done())) / 3600
    if job.config.measure:
        facts |= measured_tiles(job)
    return facts


def _largest_tile_edge(job: Job) -> int:
    """The tile_shape that this machine's memory allows. Told, not taken: it changes low bits, so it has to be written
    into the experiment, where another machine that goes on with the work finds it.
    """
    compute = job.experiment.compute
    device = choose_device(compute.device)
    workers = compute.workers if compute.runner == "daisy" else 1
    share = max(1, workers // max(1, torch.cuda.device_count())) if device != "cpu" else workers
    specs = [b.bundle.unet for b in (job.networks.affinities, job.networks.lsds) if b is not None]
    return fitting_tile_edge(specs, memory_of_device(device) // share)


def affinity_multiply_adds(job: Job) -> float:
    """Multiplications of the affinity network in all tiles of the region."""
    layer = job.scheme.affinities
    return tile_count(layer) * multiply_adds(job.networks.affinities.bundle.unet, layer.tiling.input_vox)


def lsd_multiply_adds(job: Job) -> float:
    """Multiplications of the LSD network in all tiles; with one pass those that blocks share count in each of them."""
    layer, lsds = job.scheme.affinities, job.scheme.lsds
    if lsds is None or job.networks.lsds is None:
        return 0.0
    one = multiply_adds(job.networks.lsds.bundle.unet, lsds.tiling.input_vox)
    if job.stores_lsds_first:
        return tile_count(lsds) * one
    return tile_count(layer) * lsd_tiles_per_affinity_tile(layer, lsds) * one


def tile_count(layer: Layer) -> int:
    """Tiles that cover the region of a layer."""
    return math.prod(-(-n // c) for n, c in zip(layer.region.shape_vox, layer.tiling.cell_vox, strict=True))


def lsd_tiles_per_affinity_tile(affinities: Layer, lsds: Layer) -> float:
    """LSD tiles that one pass evaluates for each affinity tile of a block: the price of not storing LSDs.

    Larger blocks bring it towards 1; two passes evaluate each LSD tile once.
    """
    block = Box(affinities.region.begin_vox, affinities.block_vox)
    needed = affinities.tiling.inputs_hull(block)
    return len(list(lsds.tiling.indices_touching(needed))) / len(list(affinities.tiling.indices_touching(block)))


def seconds_of_finished(task: BlockTask) -> float | None:
    """Mean seconds of the finished blocks that had work to do; None if there are none."""
    records = [task.marks.record(number) for number in sorted(task.marks.done())[:1000]]
    worked = [r["seconds"] for r in records if not r["facts"].get("blocks_outside_mask")]
    return float(np.mean(worked)) if worked else None


def device_taken(wanted: str) -> dict[str, Any]:
    """The device that this process works on and, of a GPU, the most of its memory that was taken so far."""
    device = choose_device(wanted)
    if device == "cpu":
        return {"device": device}
    name = torch.cuda.get_device_name(torch.device(device))
    peak = torch.cuda.max_memory_reserved(torch.device(device))
    return {"device": device, "device_name": name, "device_peak_mib": peak / 2**20}


def measured_tiles(job: Job) -> dict[str, float]:
    """Seconds of one tile of each network on this machine's device (the second of two evaluations)."""
    prepare_torch(job.experiment.compute.threads_per_worker)
    device = choose_device(job.experiment.compute.device)
    found = {"seconds_per_tile": _seconds(job, job.networks.affinities, job.scheme.affinities.tiling, device)}
    if job.networks.lsds is not None and job.scheme.lsds is not None:
        found["seconds_per_lsd_tile"] = _seconds(job, job.networks.lsds, job.scheme.lsds.tiling, device)
    return found


def _seconds(job: Job, found: BundleAt, tiling: Tiling, device: str) -> float:
    network = load(job, found, device)
    raw = torch.zeros(tiling.input_vox, dtype=torch.uint8)
    lsds = raw.expand(LSDS.channels, *raw.shape) if found.bundle.unet.in_channels > 1 else None
    network(raw, lsds, list(found.bundle.outputs))
    started = time.monotonic()
    network(raw, lsds, list(found.bundle.outputs))
    return time.monotonic() - started
