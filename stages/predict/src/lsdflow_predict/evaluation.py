"""One evaluation of a network: a tile of raw (and LSDs) in, grey levels out, and the checks of its values.

In 16 bits, the first tile is compared with float32. Whether values are finite is a tensor until somebody waits for it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_network import shapes
from lsdflow_network.inference import Predictor, load_predictor
from lsdflow_network.out_of_memory import does_not_fit, is_out_of_memory

# Raw u8, LSDs u8 or none, names of outputs -> their grey levels u8, and whether they are all finite (a bool there).
Network = Callable[[Tensor, Tensor | None, Sequence[str]], tuple[Tensor, Tensor]]
# An evaluation (its output box), and whether its values are finite: asked once a block, because that waits for it.
Finite = tuple[Box, Tensor]

LOG = logging.getLogger("lsdflow.predict")
# Of 255; fp16 differs from float32 by 0.03 to 0.05 on average, bf16 by 0.2 to 0.4 (benchmarks/RESULTS_GPU.md).
LARGEST_MEAN_LEVELS = 1.0
COMPARED_VOX = 196

# Of glibc's malloc.h: from which size on memory is mapped, and how much free memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_INT = 2**31 - 1


def grey_levels(
    network: Network, raw: Tensor, lsds: Tensor | None, names: Sequence[str], where: Box, finite: list[Finite]
) -> Tensor:
    """Outputs `names` of one evaluation as u8, (sum of channels, z, y, x), on the network's device.

    finite: this evaluation is added, for `require_finite`. Raises ConfigError if the tile does not fit in memory.
    """
    try:
        levels, is_finite = network(raw, lsds, names)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise does_not_fit(
            "the network does not fit in memory for one tile",
            error,
            f"tile {where}, output of the network {list(where.shape_vox)} vox",
            "make predict.tile_shape smaller",
        ) from error
    finite.append((where, is_finite))
    return levels


def require_finite(evaluations: Sequence[Finite]) -> None:
    """Raise BadData if an evaluation gave NaN or infinity, which every value of its tile may have come from."""
    if not evaluations:
        return
    finite = torch.stack([is_finite for _, is_finite in evaluations]).tolist()
    if not all(finite):
        raise BadData(
            "the network gives NaN or infinity",
            where=f"tile {evaluations[finite.index(False)][0]}",
            fix="the weights are broken (training diverged?): choose an earlier predict.checkpoint; if they are "
            'not, its values exceed the range of fp16: set predict.precision = "bf16" or "tf32"',
        )


def load_network(folder: Path, device: str, precision: str) -> Network:
    """The network of a bundle on its device. In 16 bits, its first evaluation is compared with float32.

    BadData if its weights are damaged.
    """
    predictor = load_predictor(folder, device=device, precision=precision)
    if predictor.precision in ("float32", "tf32"):
        return predictor.grey_levels
    compared = False

    def network(raw: Tensor, lsds: Tensor | None, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Evaluate a tile; before the first one, compare a corner of it."""
        nonlocal compared
        if not compared:
            require_parity(predictor, load_predictor(folder, device=device, precision="float32"), raw, lsds, names)
            compared = True
        return predictor.grey_levels(raw, lsds, names)

    return network


def require_parity(
    predictor: Predictor, exact: Predictor, raw: Tensor, lsds: Tensor | None, names: Sequence[str]
) -> None:
    """Compare the grey levels of a corner of a tile with those in float32; the difference is logged.

    Raises ConfigError if they differ by more than LARGEST_MEAN_LEVELS on average.
    """
    z, y, x = _comparable_vox(predictor.bundle.unet, raw.shape)
    seen, seen_lsds = raw[:z, :y, :x], None if lsds is None else lsds[:, :z, :y, :x]
    found, wanted = (p.grey_levels(seen, seen_lsds, names)[0].float() for p in (predictor, exact))
    apart = (found - wanted).abs()
    mean, most = float(apart.mean()), int(apart.max())
    LOG.info("%s differs from float32 by %.3f grey levels on average, %d at most", predictor.precision, mean, most)
    if not mean <= LARGEST_MEAN_LEVELS:
        raise ConfigError(
            f"this network cannot run in {predictor.precision}: its values differ from those in float32",
            where="predict.precision",
            wanted=f"at most {LARGEST_MEAN_LEVELS} grey levels on average",
            found=f"{mean:.2f}, at most {most}",
            fix='set predict.precision = "tf32" or "float32"',
        )


def prepare_torch(precision: str = "float32") -> None:
    """Make torch give the same bits in every process: one thread, deterministic kernels, TF32 only if named."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let the next tile have the memory of the one before: requesting it from the kernel takes a third of the time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # Not glibc: slower, not wrong.
    mallopt(_MMAP_THRESHOLD, _LARGEST_INT)
    mallopt(_TRIM_THRESHOLD, _LARGEST_INT)


def _comparable_vox(unet: UNetSpec, tile: torch.Size) -> Vox3:
    """The smallest valid input of at least COMPARED_VOX, or the whole tile."""
    wanted = min(tile[0], COMPARED_VOX), min(tile[1], COMPARED_VOX), min(tile[2], COMPARED_VOX)
    z, y, x = (min(n, m) for n, m in zip(tile, shapes.nearest_valid_input_shapes(unet, wanted)[1], strict=True))
    return z, y, x
