"""The stage: raw in, affinities (and LSDs) out, by trained networks, block by block.

    raw -> affs (and LSDs)        mode acrlsd:  raw -> LSDs in memory;  raw + LSDs -> affs

torch takes seconds to load. It is imported where blocks are computed or tiles are measured: commands that only check or
plan, and workers that wait for a coordinator, do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_contract.arrays import LSDS, affinities_to
from lsdflow_contract.errors import StageError, problems_of
from lsdflow_contract.experiment import ComputeTable, Experiment
from lsdflow_contract.geometry import Nm3, region_box
from lsdflow_contract.manifest import Manifest, read_manifest, work_key
from lsdflow_network.devices import device_facts, require_precision
from lsdflow_predict.checkpoints import Networks, check_weights, choose_networks
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.inputs import Inputs, check_mode, open_inputs, open_mask, open_raw
from lsdflow_predict.resources import (
    block_bytes,
    check_main_memory,
    choose_device,
    largest_tile_edge,
    lsd_multiply_adds,
    region_multiply_adds,
    share_of,
    threads_of,
    tile_bytes,
    worker_bytes,
)
from lsdflow_predict.same_device import require_same_device
from lsdflow_predict.tiling import tile_networks
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockTask, task_of_stage
from lsdflow_runtime.engine.daisy_runner import worker_number
from lsdflow_runtime.engine.planning import plan_task
from lsdflow_runtime.io.volumes import OutputArray, Volume

STAGE = "predict"


class Predict(BlockStage):
    """The stage; one pass."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The pass; everything that can be refused without the networks' weights is refused here."""
        config = experiment.table(STAGE, PredictConfig)
        return [_task(experiment, config, inputs_of(experiment, config))]

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems of settings, volumes and networks. Needs no GPU unless the settings name one."""
        config, device = experiment.table(STAGE, PredictConfig), experiment.compute.device
        checks: list[Callable[[], object]] = [
            lambda: read_manifest(experiment.layout, "prepare"),
            lambda: check_mode(experiment.common.mode, config),
        ]
        # Jobs of a cluster may have GPUs that the machine that validates has not.
        if not experiment.uses_cluster or device == "cpu":
            checks.append(lambda: _check_precision(experiment.compute, config))
            if device != "auto":
                checks.append(lambda: choose_device(device))
        problems = problems_of(checks) + _problems_of_target(experiment, config)
        return problems or super().problems(experiment)

    def process(self, experiment: Experiment) -> Manifest:
        """Predict the blocks that are not done. Weights, mask and precision are checked first."""
        config = experiment.table(STAGE, PredictConfig)
        inputs = inputs_of(experiment, config)
        _check_precision(experiment.compute, config)
        check_weights(inputs.networks)
        _open_mask(experiment, config, inputs.raw)
        return super().process(experiment)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks, bytes, main memory of a worker, and seconds as far as they are known."""
        config = experiment.table(STAGE, PredictConfig)
        inputs = inputs_of(experiment, config)
        task = _task(experiment, config, inputs)
        return {**plan_task(task), **_estimate(experiment.compute, inputs, task)}

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block, also the memory of a GPU."""
        return {**super().measure(experiment, folder), **device_facts(choose_device(experiment.compute.device))}

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """torch and its GPUs."""
        from lsdflow_network.devices import torch_facts

        del experiment
        return torch_facts()


def _task(experiment: Experiment, config: PredictConfig, inputs: Inputs) -> BlockTask:
    """The pass: from raw alone, or from raw and LSDs that are computed around each block and stay in memory."""
    setup, grid = config.setup or experiment.common.mode, inputs.affinities.grid
    outputs = {"affs": inputs.affinities.bundle.outputs["affs"]}
    if config.store_lsds:
        outputs["lsds"] = LSDS.channels
    parameters = _parameters(config, inputs, list(outputs), setup)

    @contextmanager
    def open_blocks() -> Iterator[BlockFunction]:
        """Choose the device, make torch deterministic, and load the networks. ContractMismatch for another device."""
        from lsdflow_network.precision import inference_precision
        from lsdflow_predict.blocks import affinity_blocks
        from lsdflow_predict.evaluation import prepare_torch

        device = choose_device(experiment.compute.device, worker_number())
        precision = inference_precision(device.partition(":")[0], config.precision)
        prepare_torch(precision)
        if not config.allow_mixed_devices:
            require_same_device(experiment.layout.result(STAGE, key), precision, device)
        mask, threads = _open_mask(experiment, config, inputs.raw), threads_of(experiment.compute, len(plan))
        yield affinity_blocks(inputs, mask, outputs=outputs, config=config, device=device, threads=threads)

    lsds = None if inputs.lsds is None else inputs.lsds.grid.tiling
    plan = BlockPlan(grid.region, grid.block_vox, grid.context_vox(lsds))
    key = work_key(STAGE, parameters, inputs.identities)
    specs = {"affs": affinities_to(inputs.affinities.bundle.neighborhood), "lsds": LSDS}
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=key,
        config=_resolved(config, inputs, setup),
        inputs=inputs.identities,
        plan=plan,
        outputs={
            name: OutputArray(
                path=experiment.layout.result(STAGE, key) / "predictions.zarr",
                spec=specs[name],
                grid=inputs.raw.geometry,
                box=grid.region,
                write_shape_vox=grid.block_vox,
                zarr_format=config.zarr_format,
            )
            for name in outputs
        },
        open=open_blocks,
        label="affs",
        share=partial(share_of, experiment.compute, grid, block_bytes(inputs.affinities, inputs.lsds)),
        may_have_holes=True,
    )


def _parameters(config: PredictConfig, inputs: Inputs, outputs: list[str], setup: str) -> dict[str, Any]:
    """What the key is made of; existing results have keys of these names and values."""
    parameters = {
        "outputs": outputs,
        "layer": asdict(inputs.affinities.grid),
        "outside": config.outside,
        "mask": config.mask,
        # Results of default settings keep the keys that they had when the default was named "float32".
        "precision": {"auto": "float32", "float32": "always float32"}.get(config.precision, config.precision),
        "setup": setup,
        "iteration": inputs.affinities.bundle.iteration,
        "zarr_format": config.zarr_format,
    }
    return parameters if inputs.lsds is None else {**parameters, "lsds": asdict(inputs.lsds.grid.tiling)}


def _resolved(config: PredictConfig, inputs: Inputs, setup: str) -> dict[str, Any]:
    """The options and what follows from them, for the manifest."""
    lsds = None if inputs.lsds is None else asdict(inputs.lsds.grid)
    calibration = inputs.affinities.bundle.calibration
    resolved = {
        "setup": setup,
        "iteration": inputs.affinities.bundle.iteration,
        "accepted": list(inputs.networks.accepted),
        "scheme": {"affinities": asdict(inputs.affinities.grid), "lsds": lsds},
        # Where later stages find it even if the network has moved.
        "lsd_sigma_nm": (inputs.lsds or inputs.affinities).bundle.sigma_nm,
        "calibration": None if calibration is None else calibration.model_dump(),
    }
    return {**config.model_dump(mode="json"), "resolved": resolved}


def inputs_of(experiment: Experiment, config: PredictConfig) -> Inputs:
    """The target and the networks of an experiment. Raises as `open_inputs`."""
    return open_inputs(experiment.layout, experiment.common.mode, config, experiment.resolve)


def _networks(experiment: Experiment, config: PredictConfig, voxel_size_nm: Nm3) -> Networks:
    return choose_networks(experiment.layout, experiment.common.mode, config, voxel_size_nm, experiment.resolve)


def _open_mask(experiment: Experiment, config: PredictConfig, raw: Volume) -> Volume | None:
    return open_mask(experiment.layout.target_volume, config.mask, raw.geometry)


def _problems_of_target(experiment: Experiment, config: PredictConfig) -> list[StageError]:
    """Problems of raw, mask, region and networks; the main memory of workers on CPUs is checked once there are none."""
    try:
        raw = open_raw(experiment.layout.target_volume)
    except StageError as error:
        return [error]
    voxel_size_nm, compute = raw.geometry.voxel_size_nm, experiment.compute

    def check_memory() -> None:
        """ConfigError if the workers of this machine need more main memory than it has."""
        networks = _networks(experiment, config, voxel_size_nm)
        region = region_box(config.roi, voxel_size_nm, raw.box, "predict.roi")
        tiled = tile_networks(networks, config, region, voxel_size_nm)
        check_main_memory(*tiled, compute, _workers_here(compute))

    problems = problems_of(
        [
            lambda: _open_mask(experiment, config, raw),
            lambda: region_box(config.roi, voxel_size_nm, raw.box, "predict.roi"),
            lambda: check_weights(_networks(experiment, config, voxel_size_nm)),
        ]
    )
    # Workers on a named GPU need little main memory, and `problems` reports a GPU that does not exist.
    return problems or ([] if compute.device.startswith("cuda") else problems_of([check_memory]))


def _check_precision(compute: ComputeTable, config: PredictConfig) -> None:
    """ConfigError for a precision in which a CPU cannot compute. Workers in other jobs each check their own CPU."""
    if config.precision != "auto" and compute.runner != "cluster" and not compute.device.startswith("cuda"):
        require_precision(choose_device(compute.device), config.precision, "predict.precision")


def _workers_here(compute: ComputeTable) -> int:
    """Workers that share this machine."""
    return compute.workers if compute.runner == "daisy" else 1


def _estimate(compute: ComputeTable, inputs: Inputs, task: BlockTask) -> dict[str, Any]:
    """Facts for `plan`: shapes of tiles, memory of a worker, and hours if something is known about the speed."""
    affinities, lsds = inputs.affinities, inputs.lsds
    tiling, device, share = affinities.grid.tiling, choose_device(compute.device), task.shared
    threads = compute.threads_per_worker if device == "cpu" else 0
    workers = share.processes if compute.runner == "daisy" else 1
    specs = [network.bundle.unet for network in inputs.tiled]
    facts: dict[str, Any] = {
        "tile_input_vox": list(tiling.input_vox),
        "tile_output_vox": list(tiling.output_vox),
        "main_memory_per_worker_bytes": worker_bytes(affinities, lsds, share.blocks_at_once, threads),
        "device_memory_per_worker_bytes": tile_bytes(inputs.tiled),
        "largest_tile_shape_that_fits_vox": largest_tile_edge(specs, device, workers),
        "workers": compute.workers,
        "blocks_at_once": share.blocks_at_once,
        "device": device,
        "accepted": list(inputs.networks.accepted),
        "multiply_adds": region_multiply_adds(affinities),
    }
    if lsds is not None:
        facts["lsd_tile_input_vox"] = list(lsds.grid.tiling.input_vox)
        facts["multiply_adds"] += lsd_multiply_adds(lsds, affinities.grid)
        facts["lsd_tiles_per_affinity_tile"] = affinities.grid.lsd_tiles_per_tile(lsds.grid.tiling)
    records = [task.marks.record(number) for number in sorted(task.marks.done())[:1000]]
    seconds = [record["seconds"] for record in records if not record["facts"].get("blocks_outside_mask")]
    if seconds:
        facts["seconds_per_block"] = float(np.mean(seconds))
        facts["worker_hours_left"] = facts["seconds_per_block"] * (len(task.plan) - len(task.marks.done())) / 3600
    return facts
