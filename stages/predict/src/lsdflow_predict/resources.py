"""The device of a worker, and the memory and computation that networks, tiles and blocks take: arithmetic on shapes.

torch takes seconds to load, and `validate` needs no GPU: it is imported only inside the functions that use one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lsdflow_command.machine import available_cores, memory_limit_bytes
from lsdflow_contract.arrays import LSDS
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import ComputeTable
from lsdflow_network import shapes
from lsdflow_network.costs import multiply_adds, network_bytes
from lsdflow_network.devices import gpu_count, require_gpu
from lsdflow_predict.tiling import TiledNetwork, TileGrid
from lsdflow_runtime.engine.block_task import Share

_SHARE_FOR_NETWORKS = 0.6
_MOST_STEPS = 100
_PROCESS_BYTES = 500_000_000
# Of the GPU memory that is free when a worker starts; the rest is for its networks, their tiles and other workers.
_SHARE_FOR_WINDOWS = 0.25
_SHARE_FOR_CACHE = 0.3
_CACHE_MB_ON_CPU = 1024
# Of main memory, for the blocks that a worker of a GPU has at once.
_SHARE_FOR_BLOCKS = 0.5
# On each GPU: one block for each core, and one that computes and one that is read.
_BESIDE_CORES, _MOST_AT_ONCE = 2, 8


def choose_device(wanted: str, worker: int = 0) -> str:
    """The torch device of `worker`: "auto" takes the GPUs in turn, or the CPU if there is none.

    Raises ConfigError for a GPU that the machine does not have, or whose driver is too old.
    """
    if wanted == "cpu":
        return wanted
    count = gpu_count()
    require_gpu(wanted, count)
    if ":" in wanted:
        return wanted
    return f"cuda:{worker % count}" if count else "cpu"


def choose_window_device(device: str, needed_bytes: int) -> str:
    """Where the raw and the LSDs of a block are kept: on the GPU if they take little of its free memory, else "cpu".

    Results do not depend on it: the bytes are only copied.
    """
    if device.startswith("cuda") and needed_bytes <= _SHARE_FOR_WINDOWS * _free_gpu_bytes(device):
        return device
    return "cpu"


def cache_bytes(configured_mb: int | None, device: str) -> int:
    """Bytes for the LSD tiles that a worker keeps on a device."""
    if configured_mb is None and device.startswith("cuda"):
        return int(_SHARE_FOR_CACHE * _free_gpu_bytes(device))
    return 1_000_000 * (_CACHE_MB_ON_CPU if configured_mb is None else configured_mb)


def share_of(compute: ComputeTable, grid: TileGrid, block_bytes: int) -> Share:
    """Workers on CPUs have one block each, or as many as give each of their threads a tile.

    A GPU has one worker, with so many blocks at once as keep the GPU busy. block_bytes: main memory for one block.
    """
    if choose_device(compute.device) == "cpu":
        return Share(compute.workers, -(-compute.threads_per_worker // grid.tiles_per_block))
    processes = 1 if compute.device.partition(":")[2] else min(compute.workers, gpu_count())
    fitting = int(_SHARE_FOR_BLOCKS * memory_limit_bytes() / block_bytes)
    wanted = min(available_cores() + _BESIDE_CORES * processes, _MOST_AT_ONCE * processes, fitting)
    return Share(processes, max(1, wanted // processes))


def threads_of(compute: ComputeTable, blocks: int) -> int:
    """CPU threads of a worker; where there are fewer blocks than workers, also those of the workers without a block."""
    spare = min(available_cores(), compute.threads_per_worker * (compute.workers // blocks))
    return max(compute.threads_per_worker, spare)


def window_bytes(grid: TileGrid, lsds: TileGrid | None) -> int:
    """Raw, LSDs and outputs around one block of `grid`, bytes; with an LSD network also the raw around the LSDs."""
    inputs = grid.tiling.inputs_hull(grid.first_block)
    raw = inputs if lsds is None else lsds.tiling.inputs_hull(inputs)
    lsd_bytes = LSDS.channels * inputs.size if lsds is not None else 0
    return inputs.size + raw.size + lsd_bytes + LSDS.channels * grid.first_block.size


def tile_bytes(networks: Sequence[TiledNetwork]) -> int:
    """Memory for one evaluation of the largest network, roughly, bytes: of the GPU where there is one."""
    return max(network_bytes(network.bundle.unet, network.grid.tiling.input_vox) for network in networks)


def worker_bytes(affinities: TiledNetwork, lsds: TiledNetwork | None, blocks_at_once: int, threads: int) -> int:
    """Main memory of a worker, roughly: the arrays of its blocks, and on a CPU a tile for each thread, bytes."""
    tiles = tile_bytes([affinities, *([lsds] if lsds else [])])
    return _PROCESS_BYTES + blocks_at_once * block_bytes(affinities, lsds) + threads * tiles


def block_bytes(affinities: TiledNetwork, lsds: TiledNetwork | None) -> int:
    """Main memory of the arrays of one block, roughly, bytes."""
    grid = affinities.grid
    channels_in = 1 + (LSDS.channels if lsds is not None else 0)
    arrays = grid.tiling.inputs_hull(grid.first_block).size * channels_in
    return arrays + grid.first_block.size * 2 * sum(affinities.bundle.outputs.values())


def check_main_memory(affinities: TiledNetwork, lsds: TiledNetwork | None, compute: ComputeTable, workers: int) -> None:
    """ConfigError if `workers` on the CPU need more main memory than the machine or the job has. No check on GPUs."""
    if choose_device(compute.device) != "cpu":
        return
    at_once = share_of(compute, affinities.grid, 1).blocks_at_once
    have, need = memory_limit_bytes(), worker_bytes(affinities, lsds, at_once, compute.threads_per_worker)
    if need * workers > have:
        raise ConfigError(
            "the workers need more main memory than there is",
            where="predict.block_shape, predict.tile_shape, compute.workers",
            wanted=f"{workers} workers x {need / 1e9:.1f} GB",
            found=f"{have / 1e9:.1f} GB",
            fix="make predict.tile_shape or predict.block_shape smaller, use fewer compute.workers, or ask for more",
        )


def largest_tile_edge(specs: Sequence[UNetSpec], device: str, workers: int) -> int:
    """The largest cubic `tile_shape` that the memory of this machine allows for each of `workers`, in voxels.

    It is reported, not used: it changes low bits, so it must be written into the experiment, where another machine that
    continues the run finds it.
    """
    if device == "cpu":
        return fitting_tile_edge(specs, memory_limit_bytes() // workers)
    return fitting_tile_edge(specs, _free_gpu_bytes(device) // max(1, workers // gpu_count()))


def fitting_tile_edge(specs: Sequence[UNetSpec], memory_bytes: int) -> int:
    """Edge of the largest cubic output, in voxels, for which all networks fit in memory together; 0 if none does."""
    fitting = 0
    for step in range(1, _MOST_STEPS):
        edge = step * max(max(shapes.tile_step_vox(spec)) for spec in specs)
        inputs = [shapes.input_shape_for_output(spec, (edge, edge, edge)) for spec in specs]
        if sum(network_bytes(s, i) for s, i in zip(specs, inputs, strict=True)) > _SHARE_FOR_NETWORKS * memory_bytes:
            break
        fitting = edge
    return fitting


def region_multiply_adds(network: TiledNetwork) -> int:
    """Multiplications of a network that evaluates each tile of its region once."""
    return network.grid.tile_count * multiply_adds(network.bundle.unet, network.grid.tiling.input_vox)


def lsd_multiply_adds(lsds: TiledNetwork, affinities: TileGrid) -> float:
    """Multiplications of an LSD network whose LSDs stay in memory: tiles that blocks share count in each of them."""
    tiles = affinities.tile_count * affinities.lsd_tiles_per_tile(lsds.grid.tiling)
    return tiles * multiply_adds(lsds.bundle.unet, lsds.grid.tiling.input_vox)


def _free_gpu_bytes(device: str) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return int(free)
