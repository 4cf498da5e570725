"""The networks as predict sees them: one patch in, grey levels out; and how torch is set for them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box
from lsdflow_network.out_of_memory import first_line, is_out_of_memory

U8 = npt.NDArray[np.uint8]
# Raw u8, LSDs u8 or none, names of outputs -> their grey levels u8, and whether they are all finite.
Network = Callable[[Tensor, Tensor | None, Sequence[str]], tuple[Tensor, bool]]

# Of glibc's malloc.h: from which size on memory is mapped, and how much free memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_INT = 2**31 - 1


def grey_levels(network: Network, raw: Tensor, lsds: Tensor | None, names: Sequence[str], where: Box) -> Tensor:
    """Outputs `names` of one evaluation as u8, (sum of channels, z, y, x), on the network's device.

    Raises ConfigError (the tile does not fit in memory) or BadData (the network gives NaN: its weights are broken).
    """
    try:
        levels, finite = network(raw, lsds, names)
    except (RuntimeError, MemoryError) as error:
        raise _explained(error, where) from error
    if not finite:
        raise BadData(
            "the network gives NaN or infinity",
            where=f"tile {where}",
            fix="the weights are broken (training diverged?): choose an earlier predict.checkpoint",
        )
    return levels


def prepare_torch(threads: int) -> None:
    """Make torch give the same bits in every process: fixed thread count, deterministic kernels, no TF32."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let the next tile have the memory of the one before: asking the kernel for it anew takes a third of the time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # Not glibc: slower, not wrong.
    mallopt(_MMAP_THRESHOLD, _LARGEST_INT)
    mallopt(_TRIM_THRESHOLD, _LARGEST_INT)


def _explained(error: Exception, where: Box) -> Exception:
    if not is_out_of_memory(error):
        return error
    return ConfigError(
        "the network does not fit in memory for one tile",
        where=f"tile {where}, output of the network {list(where.shape_vox)} vox",
        found=first_line(error),
        fix="make predict.tile_shape smaller, or give the worker a GPU of its own (compute.workers)",
    )
