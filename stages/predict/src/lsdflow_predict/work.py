"""The blocks of a Job, for the runtime: keys, outputs, plans. torch is loaded when a worker opens them, not before."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lsdflow_contract.arrays import LSDS, affinities_to
from lsdflow_contract.errors import InternalError
from lsdflow_contract.manifest import work_key
from lsdflow_predict.job import STAGE, Job
from lsdflow_predict.scheme import Layer, raw_read_around
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockTask, container_of
from lsdflow_runtime.io.volumes import OutputArray


def tasks_of(job: Job) -> list[BlockTask]:
    """The passes of a run, in their order."""
    return [*([lsd_task(job)] if job.stores_lsds_first else []), affinity_task(job)]


def affinity_task(job: Job) -> BlockTask:
    """The blocks of affinities; with two passes they depend on the stored LSDs."""
    layer = job.scheme.affinities
    parameters = {**_parameters(job, layer), "outputs": list(job.outputs)}
    inputs = job.inputs()
    if job.stores_lsds_first:
        inputs["lsds"] = lsd_task(job).key
    elif job.scheme.lsds is not None:
        parameters["lsds"] = job.scheme.lsds.tiling_dict()
    opener = partial(_opened, "open_affinities", job)
    return _task(job, layer, parameters=parameters, inputs=inputs, names=list(job.outputs), opener=opener, label="affs")


def lsd_task(job: Job) -> BlockTask:
    """The blocks of LSDs of the first of two passes."""
    if job.scheme.lsds is None:
        raise InternalError("no LSD network in this mode")
    layer = job.scheme.lsds
    parameters = {**_parameters(job, layer), "part": "lsds", "seen_by": job.scheme.affinities.tiling_dict()}
    inputs = {name: identity for name, identity in job.inputs().items() if name != "network"}
    opener = partial(_opened, "open_lsds", job)
    return _task(job, layer, parameters=parameters, inputs=inputs, names=["lsds"], opener=opener, label="lsds")


def _parameters(job: Job, layer: Layer) -> dict[str, Any]:
    return {
        "layer": layer.as_dict(),
        "outside": job.config.outside,
        "mask": job.config.mask,
        "precision": job.config.precision,
        "setup": job.setup,
        "iteration": job.networks.affinities.bundle.iteration,
        "zarr_format": job.config.zarr_format,
    }


def _task(
    job: Job,
    layer: Layer,
    *,
    parameters: dict[str, Any],
    inputs: dict[str, str],
    names: list[str],
    opener: Callable[[], AbstractContextManager[BlockFunction]],
    label: str,
) -> BlockTask:
    specs = {"affs": affinities_to(job.networks.affinities.bundle.neighborhood), "lsds": LSDS}
    key = work_key(STAGE, parameters, inputs)
    outputs = {
        name: OutputArray(
            path=container_of(job.experiment.layout, STAGE, key, name, "predictions.zarr"),
            spec=specs[name],
            grid=job.raw.geometry,
            box=layer.region,
            write_shape_vox=layer.block_vox,
            zarr_format=job.config.zarr_format,
        )
        for name in names
    }
    return BlockTask(
        stage=STAGE,
        experiment=job.experiment,
        key=key,
        config=job.resolved(),
        inputs=inputs,
        plan=BlockPlan(layer.region, layer.block_vox, raw_read_around(layer, job.scheme, not job.stores_lsds_first)),
        outputs=outputs,
        open=opener,
        label=label,
        # Affinities of LSDs that are not there would be made up: the first of two passes must be whole.
        may_have_holes=label == "affs",
    )


def _opened(name: str, job: Job) -> AbstractContextManager[BlockFunction]:
    opener = getattr(importlib.import_module("lsdflow_predict.opened"), name)
    opened: AbstractContextManager[BlockFunction] = opener(job)
    return opened
