"""What networks, their tiles and the arrays of a block need of main memory: arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lsdflow_command.machine import memory_limit_bytes
from lsdflow_contract.arrays import LSDS
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_network import shapes
from lsdflow_network.costs import network_bytes
from lsdflow_predict.checkpoints import Networks
from lsdflow_predict.devices import choose_device
from lsdflow_predict.scheme import Layer, Scheme

_SHARE_FOR_NETWORKS = 0.6
_MOST_STEPS = 100
_PROCESS_BYTES = 500_000_000


def fitting_tile_edge(specs: Sequence[UNetSpec], memory_bytes: int) -> int:
    """Edge of the largest cubic output, in voxels, of which each network fits beside the others; 0 if none does."""
    fitting = 0
    for step in range(1, _MOST_STEPS):
        edge = step * max(max(shapes.tile_step_vox(spec)) for spec in specs)
        inputs = [shapes.input_shape_for_output(spec, (edge, edge, edge)) for spec in specs]
        if sum(network_bytes(s, i) for s, i in zip(specs, inputs, strict=True)) > _SHARE_FOR_NETWORKS * memory_bytes:
            break
        fitting = edge
    return fitting


def window_bytes(scheme: Scheme, layer: Layer) -> int:
    """Raw, LSDs and outputs around one block of a layer, bytes; with one pass also the raw around the LSDs."""
    block = Box(layer.region.begin_vox, layer.block_vox)
    inputs = layer.tiling.inputs_hull(block)
    raw = inputs if scheme.lsds is None else scheme.lsds.tiling.inputs_hull(inputs)
    lsds = LSDS.channels * inputs.size if scheme.lsds is not None else 0
    return inputs.size + raw.size + lsds + LSDS.channels * int(np.prod(layer.block_vox))


def worker_bytes(scheme: Scheme, networks: Networks) -> int:
    """Main memory of one worker on the CPU, roughly: one tile of the network and the arrays of one block, bytes."""
    layer = scheme.affinities
    inputs = layer.tiling.inputs_hull(Box(layer.region.begin_vox, layer.block_vox)).size
    arrays = inputs * (1 + (LSDS.channels if scheme.lsds is not None else 0))
    arrays += int(np.prod(layer.block_vox)) * 2 * sum(networks.affinities.bundle.outputs.values())
    return _PROCESS_BYTES + arrays + tile_bytes(scheme, networks)


def tile_bytes(scheme: Scheme, networks: Networks) -> int:
    """Memory one evaluation of the larger network needs, roughly, bytes; on a GPU this lies there."""
    sizes = [network_bytes(networks.affinities.bundle.unet, scheme.affinities.tiling.input_vox)]
    if scheme.lsds is not None and networks.lsds is not None:
        sizes.append(network_bytes(networks.lsds.bundle.unet, scheme.lsds.tiling.input_vox))
    return max(sizes)


def memory_problem(scheme: Scheme, networks: Networks, experiment: Experiment) -> None:
    """ConfigError if the workers together need more main memory than machine or job have (networks on the CPU only)."""
    have = memory_limit_bytes()
    workers = experiment.compute.workers if experiment.compute.runner == "daisy" else 1
    need = worker_bytes(scheme, networks)
    if choose_device(experiment.compute.device) == "cpu" and need * workers > have:
        raise ConfigError(
            "the workers need more main memory than there is",
            where="predict.block_shape, predict.tile_shape, compute.workers",
            wanted=f"{workers} workers x {need / 1e9:.1f} GB",
            found=f"{have / 1e9:.1f} GB",
            fix="make predict.tile_shape or predict.block_shape smaller, use fewer compute.workers, or ask for more",
        )
