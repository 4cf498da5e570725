"""The stage: raw in, affinities (and LSDs) out, by trained networks, block by block.

    one pass     raw -> LSDs in memory -> affs            two passes    raw -> lsds on disk;  raw + lsds -> affs

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
from lsdflow_contract.geometry import region_box
from lsdflow_contract.manifest import Manifest, read_manifest, work_key
from lsdflow_network.devices import require_precision
from lsdflow_predict.checkpoints import check_weights
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.inputs import Inputs, check_mode, choose_networks_of, open_inputs, open_mask, open_raw
from lsdflow_predict.resources import (
    block_bytes,
    check_main_memory,
    choose_device,
    device_facts,
    largest_tile_edge,
    one_pass_multiply_adds,
    region_multiply_adds,
    share_of,
    threads_of,
    tile_bytes,
    worker_bytes,
)
from lsdflow_predict.same_device import require_same_device
from lsdflow_predict.tiling import TiledNetwork, TileGrid, Tiling, tile_networks
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockFunction, BlockTask
from lsdflow_runtime.engine.daisy_runner import worker_number
from lsdflow_runtime.engine.planning import plan_task
from lsdflow_runtime.io.volumes import OutputArray, Volume

STAGE = "predict"


class Predict(BlockStage):
    """The stage: a pass of affinities; where LSDs are stored first, a pass of LSDs before it."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The passes; everything that can be refused without the networks' weights is refused here."""
        config = experiment.table(STAGE, PredictConfig)
        return _passes(experiment, config, open_inputs(experiment, config))

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
        inputs = open_inputs(experiment, config)
        _check_precision(experiment.compute, config)
        check_weights(inputs.networks)
        _open_mask(experiment, config, inputs.raw)
        return super().process(experiment)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks, bytes, main memory of a worker, and seconds as far as they are known."""
        config = experiment.table(STAGE, PredictConfig)
        inputs = open_inputs(experiment, config)
        *before, last = _passes(experiment, config, inputs)
        facts = {**plan_task(last), **_estimate(experiment.compute, inputs, last, *before)}
        if inputs.lsds is None or not before:
            return facts
        lsds = {**plan_task(before[0]), "multiply_adds": region_multiply_adds(inputs.lsds)}
        return {**facts, "passes": {before[0].label: lsds, last.label: facts}}

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Time and memory of one block of the first pass, also the memory of a GPU."""
        return {**super().measure(experiment, folder), **device_facts(choose_device(experiment.compute.device))}

    def doctor(self, experiment: Experiment | None) -> dict[str, Any]:
        """torch and its GPUs."""
        from lsdflow_network.devices import torch_facts

        del experiment
        return torch_facts()


def _passes(experiment: Experiment, config: PredictConfig, inputs: Inputs) -> list[BlockTask]:
    """The passes in their order."""
    if inputs.lsds is None or config.passes == "one":
        return [_affinity_pass(experiment, config, inputs, None)]
    lsd_pass = _lsd_pass(experiment, config, inputs, inputs.lsds)
    return [lsd_pass, _affinity_pass(experiment, config, inputs, lsd_pass)]


def _affinity_pass(
    experiment: Experiment, config: PredictConfig, inputs: Inputs, lsd_pass: BlockTask | None
) -> BlockTask:
    """The pass of affinities: from the LSDs that `lsd_pass` stores, from LSDs in memory, or from raw alone."""
    outputs = {"affs": inputs.affinities.bundle.outputs["affs"]}
    if config.store_lsds and lsd_pass is None:
        outputs["lsds"] = LSDS.channels
    parameters: dict[str, Any] = {"outputs": list(outputs)}
    identities = dict(inputs.identities)
    lsds_in_memory: Tiling | None = None
    if lsd_pass is not None:
        identities["lsds"] = lsd_pass.key
    elif inputs.lsds is not None:
        lsds_in_memory = inputs.lsds.grid.tiling
        parameters["lsds"] = asdict(lsds_in_memory)

    def load(device: str, mask: Volume | None, threads: int) -> BlockFunction:
        """What a worker does with a block: its affinities on this device, 0 outside the mask."""
        from lsdflow_predict.blocks import affinity_blocks

        stored = None if lsd_pass is None else lsd_pass.outputs["lsds"].open()
        return affinity_blocks(inputs, stored, mask, outputs=outputs, config=config, device=device, threads=threads)

    return _block_task(
        experiment,
        config,
        inputs,
        inputs.affinities.grid,
        label="affs",
        outputs=list(outputs),
        parameters=parameters,
        identities=identities,
        lsds_in_memory=lsds_in_memory,
        load=load,
    )


def _lsd_pass(experiment: Experiment, config: PredictConfig, inputs: Inputs, lsds: TiledNetwork) -> BlockTask:
    """The first of two passes: LSDs of the region and of what the affinity tiles see around it."""

    def load(device: str, mask: Volume | None, threads: int) -> BlockFunction:
        """What a worker does with a block of the first pass: its LSDs on this device."""
        from lsdflow_predict.blocks import lsd_blocks

        return lsd_blocks(inputs.raw, lsds, mask, inputs.affinities.grid, config=config, device=device, threads=threads)

    return _block_task(
        experiment,
        config,
        inputs,
        lsds.grid,
        label="lsds",
        outputs=["lsds"],
        parameters={"part": "lsds", "seen_by": asdict(inputs.affinities.grid.tiling)},
        identities={name: identity for name, identity in inputs.identities.items() if name != "network"},
        lsds_in_memory=None,
        load=load,
    )


def _block_task(
    experiment: Experiment,
    config: PredictConfig,
    inputs: Inputs,
    grid: TileGrid,
    *,
    label: str,
    outputs: list[str],
    parameters: dict[str, Any],
    identities: dict[str, str],
    lsds_in_memory: Tiling | None,
    load: Callable[[str, Volume | None, int], BlockFunction],
) -> BlockTask:
    """A pass over the blocks of `grid`. `parameters`: those that the other pass does not have.

    load(device, mask, threads) loads the networks in a worker; it returns what the worker does with a block.
    """

    @contextmanager
    def open_blocks() -> Iterator[BlockFunction]:
        """Choose the device, make torch deterministic, and load the networks. ContractMismatch for another device."""
        from lsdflow_network.precision import inference_precision
        from lsdflow_predict.evaluation import prepare_torch

        device = choose_device(experiment.compute.device, worker_number())
        precision = inference_precision(device.partition(":")[0], config.precision)
        prepare_torch(precision)
        if not config.allow_mixed_devices:
            require_same_device(experiment.layout.result(STAGE, key), precision, device)
        yield load(device, _open_mask(experiment, config, inputs.raw), threads_of(experiment.compute, len(plan)))

    setup = config.setup or experiment.common.mode
    plan = BlockPlan(grid.region, grid.block_vox, grid.context_vox(lsds_in_memory))
    key = work_key(STAGE, {**_parameters(config, inputs, grid, setup), **parameters}, identities)
    specs = {"affs": affinities_to(inputs.affinities.bundle.neighborhood), "lsds": LSDS}
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=key,
        config=_resolved(config, inputs, setup),
        inputs=identities,
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
        label=label,
        share=partial(share_of, experiment.compute, grid, block_bytes(inputs.affinities, inputs.lsds)),
        # Affinities of LSDs that failed would be wrong: the first of two passes must be complete.
        may_have_holes=label == "affs",
    )


def _parameters(config: PredictConfig, inputs: Inputs, grid: TileGrid, setup: str) -> dict[str, Any]:
    """What the key of either pass is made of; existing results have keys of these names and values."""
    return {
        "layer": asdict(grid),
        "outside": config.outside,
        "mask": config.mask,
        # Results of default settings keep the keys that they had when the default was named "float32".
        "precision": {"auto": "float32", "float32": "always float32"}.get(config.precision, config.precision),
        "setup": setup,
        "iteration": inputs.affinities.bundle.iteration,
        "zarr_format": config.zarr_format,
    }


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
        networks = choose_networks_of(experiment, config, voxel_size_nm)
        region = region_box(config.roi, voxel_size_nm, raw.box, "predict.roi")
        tiled = tile_networks(networks, config, region, voxel_size_nm)
        check_main_memory(*tiled, compute, _workers_here(compute))

    problems = problems_of(
        [
            lambda: _open_mask(experiment, config, raw),
            lambda: region_box(config.roi, voxel_size_nm, raw.box, "predict.roi"),
            lambda: check_weights(choose_networks_of(experiment, config, voxel_size_nm)),
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


def _estimate(
    compute: ComputeTable, inputs: Inputs, task: BlockTask, lsd_pass: BlockTask | None = None
) -> dict[str, Any]:
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
    if lsd_pass is not None:
        facts["lsd_blocks"] = len(lsd_pass.plan)
        facts["lsd_bytes_out_uncompressed"] = LSDS.channels * lsd_pass.plan.total.size
    if lsds is not None:
        facts["lsd_tile_input_vox"] = list(lsds.grid.tiling.input_vox)
    if lsds is not None and lsd_pass is None:
        facts["multiply_adds"] += one_pass_multiply_adds(lsds, affinities.grid)
        facts["lsd_tiles_per_affinity_tile"] = affinities.grid.lsd_tiles_per_tile(lsds.grid.tiling)
    records = [task.marks.record(number) for number in sorted(task.marks.done())[:1000]]
    seconds = [record["seconds"] for record in records if not record["facts"].get("blocks_outside_mask")]
    if seconds:
        facts["seconds_per_block"] = float(np.mean(seconds))
        facts["worker_hours_left"] = facts["seconds_per_block"] * (len(task.plan) - len(task.marks.done())) / 3600
    return facts
