"""What predict does with one block: the tiles that touch it are evaluated and assembled.

One pass (LSDs in memory) and two passes (LSDs stored) differ only in where the LSDs of the affinity network come from:
both get the grey levels of the same LSD tiles, so both give the same bits. Windows and tiles are tensors. Where the GPU
has room for the raw and the LSDs of a block, bytes go there once and come back once.

torch takes seconds to load: only processes that compute blocks or measure tiles import this module.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.arrays import LSDS
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_network import shapes
from lsdflow_network.inference import Predictor, load_predictor
from lsdflow_network.out_of_memory import does_not_fit, is_out_of_memory
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.inputs import Inputs
from lsdflow_predict.resources import choose_window_device, window_bytes
from lsdflow_predict.tiling import Index3, TiledNetwork, TileGrid, Tiling, assemble, crop_to_cell, hull
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume

U8 = npt.NDArray[np.uint8]
ReadBox = Callable[[Box], Tensor]
# Raw u8, LSDs u8 or none, names of outputs -> their grey levels u8, and whether they are all finite (a bool there).
Network = Callable[[Tensor, Tensor | None, Sequence[str]], tuple[Tensor, Tensor]]
# Evaluations (output boxes), and whether their values are finite: asked once for many tiles, because it waits for them.
Finite = list[tuple[Box, Tensor]]

LOG = logging.getLogger("lsdflow.predict")
# Of 255; fp16 differs from float32 by 0.03 to 0.05 on average, bf16 by 0.2 to 0.4 (benchmarks/RESULTS_GPU.md).
LARGEST_MEAN_LEVELS = 1.0
COMPARED_VOX = 196

_MB = 1_000_000
# Of glibc's malloc.h: from which size on memory is mapped, and how much free memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_INT = 2**31 - 1


def affinity_blocks(
    inputs: Inputs,
    stored_lsds: Volume | None,
    mask: Volume | None,
    *,
    outputs: dict[str, int],
    config: PredictConfig,
    device: str,
) -> BlockFunction:
    """Load the networks and return the function of a block: its `outputs` (name -> channels), u8, 0 outside the mask.

    stored_lsds: the LSDs that the first of two passes has stored. If there are none, an LSD network computes them for
    each block and they stay in memory. Networks are evaluated on the torch device `device`.
    """
    affinities, lsds = inputs.affinities, inputs.lsds
    tiling = affinities.grid.tiling
    window_device = choose_window_device(device, window_bytes(affinities.grid, None if lsds is None else lsds.grid))
    read_raw = _raw_reader(inputs.raw, config, window_device)
    read_lsds: ReadBox | None = None
    if stored_lsds is not None:
        read_lsds = _reader(stored_lsds.read, window_device)
    elif lsds is not None:
        read_lsds = _lsd_source(read_raw, lsds, config, device, window_device).read
    network = load_network(affinities.folder, device, config.precision)

    def predict_block(block: Block) -> BlockOutput:
        """Predict the write ROI of a block: u8 arrays (channels, z, y, x) by name, and counts for the manifest."""
        box = block.write
        inside = None if mask is None else mask.read(box, outside="zero")
        arrays = {name: np.zeros((channels, *box.shape_vox), np.uint8) for name, channels in outputs.items()}
        tiles = tiles_inside(tiling, box, inside)
        if tiles:
            seen = hull(tiling.input(index) for index in tiles)
            raw_window = Window(seen, read_raw(seen))
            lsd_window = None if read_lsds is None else Window(seen, read_lsds(seen))
            own = outputs if lsd_window is None else {"affs": outputs["affs"]}
            arrays |= predict_box(tiling, box, tiles, network=network, outputs=own, raw=raw_window, lsds=lsd_window)
            if lsd_window is not None and "lsds" in outputs:
                arrays["lsds"] = _pasted(lsd_window, box)
        if inside is not None:
            arrays = {name: np.where(inside[None] > 0, values, np.uint8(0)) for name, values in arrays.items()}
        return BlockOutput(arrays=arrays, facts={"blocks_outside_mask": int(not tiles), "tiles": len(tiles)})

    return predict_block


def lsd_blocks(
    raw: Volume,
    lsds: TiledNetwork,
    mask: Volume | None,
    affinities: TileGrid,
    *,
    config: PredictConfig,
    device: str,
) -> BlockFunction:
    """Load the LSD network and return the function of a block of the first pass: its LSDs, u8 (10, z, y, x).

    They are 0 in blocks that no affinity tile with a voxel inside the mask needs.
    """
    window_device = choose_window_device(device, window_bytes(lsds.grid, lsds.grid))
    source = _lsd_source(_raw_reader(raw, config, window_device), lsds, config, device, window_device)

    def is_needed(box: Box) -> bool:
        """True unless the mask is 0 wherever an affinity tile could use LSDs of this box."""
        # A tile whose input meets the box owns voxels at most one input shape away from it.
        near = box.grow(affinities.tiling.input_vox).intersect(affinities.region)
        return mask is None or bool(mask.read(near, outside="zero").any())

    def predict_block(block: Block) -> BlockOutput:
        """Predict the LSDs of the write ROI of a block, u8 (10, z, y, x)."""
        if not is_needed(block.write):
            zeros = np.zeros((LSDS.channels, *block.write.shape_vox), np.uint8)
            return BlockOutput(arrays={"lsds": zeros}, facts={"blocks_outside_mask": 1})
        return BlockOutput(arrays={"lsds": source.read(block.write).cpu().numpy()}, facts={"blocks_outside_mask": 0})

    return predict_block


@dataclass(frozen=True)
class Window:
    """A tensor u8 (..., z, y, x) and the box it covers."""

    box: Box
    values: Tensor

    def crop(self, box: Box) -> Tensor:
        """The values of `box`, which must be inside."""
        return self.values[(..., *box.slices(self.box.begin_vox))]


@dataclass
class TileCache:
    """The tiles used last, up to `capacity_bytes`. The cache changes no value, only how often tiles are computed."""

    capacity_bytes: int
    _tiles: OrderedDict[Index3, Tensor] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def __contains__(self, index: Index3) -> bool:
        return index in self._tiles

    def clear(self) -> None:
        """Forget all tiles."""
        self._tiles.clear()
        self._bytes = 0

    def get(self, index: Index3, compute: Callable[[Index3], Tensor]) -> Tensor:
        """The tile `index`, computed if it is not in the cache."""
        if index in self._tiles:
            self._tiles.move_to_end(index)
            return self._tiles[index]
        tile = compute(index)
        self._tiles[index] = tile
        self._bytes += tile.nbytes
        while self._bytes > self.capacity_bytes:
            self._bytes -= self._tiles.popitem(last=False)[1].nbytes
        return tile


@dataclass(frozen=True)
class LsdSource:
    """LSDs computed from raw, tile by tile; kept on `device`."""

    tiling: Tiling
    network: Network
    raw: ReadBox
    cache: TileCache
    device: str = "cpu"

    def read(self, box: Box) -> Tensor:
        """LSDs (10, *box.shape) u8. Raw of all tiles that are not in the cache is read at once."""
        missing = [self.tiling.input(i) for i in self.tiling.indices_touching(box) if i not in self.cache]
        window = None
        if missing:
            seen = hull(missing)
            window = Window(seen, self.raw(seen))
        finite: Finite = []

        def compute(index: Index3) -> Tensor:
            """The LSDs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns."""
            seen = self.tiling.input(index)
            # The cache may have dropped a tile that it had when `missing` was listed: its raw is not in the window.
            raw = window.crop(seen) if window is not None and window.box.contains(seen) else self.raw(seen)
            output = grey_levels(self.network, raw, None, ("lsds",), self.tiling.output(index), finite)
            return crop_to_cell(self.tiling, output).to(self.device).contiguous()

        result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=self.device)
        assemble(self.tiling, box, result, lambda index: self.cache.get(index, compute))
        try:
            require_finite(finite)
        except BadData:
            self.cache.clear()  # another attempt must not take these tiles for checked ones
            raise
        return result


def tiles_inside(tiling: Tiling, box: Box, mask: U8 | None) -> list[Index3]:
    """Tiles touching `box` that own a voxel inside the mask (z, y, x over the box); all of them without a mask."""
    indices = tiling.indices_touching(box)
    if mask is None:
        return list(indices)
    return [i for i in indices if mask[tiling.cell(i).intersect(box).slices(box.begin_vox)].any()]


def predict_box(
    tiling: Tiling,
    box: Box,
    tiles: Sequence[Index3],
    *,
    network: Network,
    outputs: dict[str, int],
    raw: Window,
    lsds: Window | None,
) -> dict[str, U8]:
    """Outputs (name -> channels) of `network` in `box`, as name -> (channels, *box.shape) grey levels.

    tiles: those to evaluate, all others are 0. raw, lsds: windows that hold the inputs of these tiles;
    lsds only for a network that takes them.
    """
    needed = set(tiles)
    finite: Finite = []

    def evaluate(index: Index3) -> Tensor | None:
        """The outputs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns; None if not needed."""
        if index not in needed:
            return None
        seen = tiling.input(index)
        seen_lsds = None if lsds is None else lsds.crop(seen)
        levels = grey_levels(network, raw.crop(seen), seen_lsds, list(outputs), tiling.output(index), finite)
        return crop_to_cell(tiling, levels)

    result = torch.zeros((sum(outputs.values()), *box.shape_vox), dtype=torch.uint8, device=raw.values.device)
    values: U8 = assemble(tiling, box, result, evaluate).cpu().numpy()
    require_finite(finite)
    ends = np.cumsum(list(outputs.values()))
    return dict(zip(outputs, np.split(values, ends[:-1]), strict=True))


def grey_levels(
    network: Network, raw: Tensor, lsds: Tensor | None, names: Sequence[str], where: Box, finite: Finite
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


def require_finite(evaluations: Finite) -> None:
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


def seconds_per_tile(tiled: TiledNetwork, device: str, precision: str) -> float:
    """Seconds of one tile of a network on this machine's device (the second of two evaluations)."""
    network, bundle = load_network(tiled.folder, device, precision), tiled.bundle
    raw = torch.zeros(tiled.grid.tiling.input_vox, dtype=torch.uint8)
    lsds = raw.expand(LSDS.channels, *raw.shape) if bundle.unet.in_channels > 1 else None
    network(raw, lsds, list(bundle.outputs))
    started = time.monotonic()
    network(raw, lsds, list(bundle.outputs))
    return time.monotonic() - started


def prepare_torch(threads: int, precision: str = "float32") -> None:
    """Make torch give the same bits in every process: fixed thread count, deterministic kernels, TF32 only if named."""
    torch.set_num_threads(threads)
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


def _lsd_source(
    read_raw: ReadBox, lsds: TiledNetwork, config: PredictConfig, device: str, window_device: str
) -> LsdSource:
    network = load_network(lsds.folder, device, config.precision)
    return LsdSource(lsds.grid.tiling, network, read_raw, TileCache(config.lsd_cache_mb * _MB), window_device)


def _raw_reader(raw: Volume, config: PredictConfig, device: str) -> ReadBox:
    """Reads raw of any box onto a device; beyond the target's edge it is mirrored or 0, as configured."""
    return _reader(lambda box: raw.read(box, outside=config.outside), device)


def _reader(read: Callable[[Box], U8], device: str) -> ReadBox:
    return lambda box: torch.from_numpy(np.require(read(box), requirements=("C", "W"))).to(device)


def _pasted(lsds: Window, box: Box) -> U8:
    """LSDs (10, *box.shape) of a window where it covers the box, 0 elsewhere."""
    result = np.zeros((LSDS.channels, *box.shape_vox), np.uint8)
    shared = lsds.box.intersect(box)
    result[(slice(None), *shared.slices(box.begin_vox))] = lsds.crop(shared).cpu().numpy()
    return result
